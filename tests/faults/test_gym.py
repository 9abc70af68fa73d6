"""Adversaries in a swarm: what a lying peer gets sealed, and that the others go on.

Workers count, so the honest end is known to the bit. Nothing checks here: these are the lies that
audits and the gate are there for.
"""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.work import RoundClosed
from tallystick.gym.registry import behaviour_of
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import MemorySwarm, make_papers

STEPS, UNITS = 4, 12


def swarm_of(folder: Path, *workers: str, stages: int = 1, **rules: Any) -> MemorySwarm:
    papers = make_papers(
        *workers,
        stages=stages,
        steps=STEPS,
        units_per_step=UNITS,
        rows_per_unit=32,
        chunks=2,
        checkpoint_every=2,
        validate_every=STEPS,
        **rules,
    )
    return MemorySwarm(papers, folder)


def play(swarm: MemorySwarm, name: str, text: str) -> None:
    """Let one worker be an adversary."""
    swarm.behaviours[name] = behaviour_of(text, swarm.papers.spec.message.rules)


def ends_as_plain(swarm: MemorySwarm) -> bool:
    """Whether the states are those that honest work leads to."""
    return swarm.state_roots() == [{root} for root in plain_run(swarm.papers.spec.message).states]


def assert_all_sealed(swarm: MemorySwarm) -> None:
    """The job went to its end, and all members of a stage have the same state."""
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    assert all(len(roots) == 1 for roots in swarm.state_roots())
    assert not swarm.refused


def merged(swarm: MemorySwarm, name: str) -> set[int]:
    """Rounds whose means hold work of a peer."""
    names = {each for closed in swarm.messages(RoundClosed) for each, _ in closed.claims}
    peer = swarm.session_of(name).peer
    return {each.round for each in swarm.claims() if each.peer == peer and each.digest() in names}


async def test_swarm__adversaries_whose_time_has_not_come__change_nothing(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", "dan", stages=2)
    play(swarm, "ann", "stale:from=99")
    play(swarm, "bob", "huge:share=0")
    play(swarm, "cem", "withheld")
    play(swarm, "dan", "accuser+stamp")

    await swarm.run()

    assert_all_sealed(swarm)
    assert ends_as_plain(swarm)


async def test_swarm__a_peer_cheats_and_leaves__in_order_after_the_seal(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem")
    play(swarm, "bob", "turned:from=2,until=2+leaving:from=2")

    await swarm.run()

    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    assert max(merged(swarm, "bob")) in (2, 3)
    assert swarm.lines("left", of="bob")
    assert not ends_as_plain(swarm)


@pytest.mark.simulated_time
@pytest.mark.parametrize(
    "text", ["not_finite_parts", pytest.param("oversized_parts", marks=pytest.mark.nightly)]
)
async def test_swarm__shards_that_nobody_can_add__are_left_out_of_every_round(
    tmp_path: Path, text: str
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", exchange_timeout=600, commit_timeout=600)
    play(swarm, "bob", text)

    await swarm.run()

    assert_all_sealed(swarm)
    assert ends_as_plain(swarm)
    assert swarm.lines("claim_stored", of="bob") and not merged(swarm, "bob")
