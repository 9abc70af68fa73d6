"""Adversaries in a swarm: what a lying peer gets sealed, and that the others go on.

Workers count (`CountingCompute`), so the honest end is known to the bit. Nothing checks here yet:
these are the lies that audits, sums' audits and the gate are there for.
"""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import ChunkIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Seal
from tallystick.gym.registry import behaviour_of
from tests.support.pipeline import pipeline
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import MemorySwarm, make_papers
from training.transport import calls
from training.worker.answers import Answers
from training.worker.book import OwnCommit
from training.worker.station import Station
from training.worker.work import Work

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
    """Whether the weights are those that honest work leads to."""
    plain = plain_run(swarm.papers.spec.message)
    return swarm.weights_roots() == [{root} for root in plain.weights]


def assert_all_sealed(swarm: MemorySwarm) -> None:
    """The job went to its end, and all members of a stage have the same weights."""
    assert [seal.step for seal in swarm.messages(Seal)] == list(range(1, STEPS + 1))
    assert all(len(roots) == 1 for roots in swarm.weights_roots())
    assert not swarm.refused


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
    peer = swarm.session_of("bob").peer
    assert max(commit.step for commit in swarm.commits() if commit.peer == peer) in (2, 3)
    assert swarm.lines("left", of="bob")
    assert not ends_as_plain(swarm)


@pytest.mark.simulated_time
@pytest.mark.parametrize(
    "text", ["not_finite_parts", pytest.param("oversized_parts", marks=pytest.mark.nightly)]
)
async def test_swarm__parts_that_nobody_can_add__are_left_out_of_every_step(
    tmp_path: Path, text: str
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", exchange_timeout=600, commit_timeout=600)
    play(swarm, "bob", text)

    await swarm.run()

    assert_all_sealed(swarm)
    assert ends_as_plain(swarm)
    assert swarm.lines("part_not_fetched")


async def test_swarm__boundary_tensors_longer_than_they_say__others_do_the_units(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", "dan", stages=2)
    play(swarm, "bob", "oversized")

    await swarm.run()

    assert_all_sealed(swarm)
    assert ends_as_plain(swarm)
    peer = swarm.session_of("bob").peer
    assert peer not in {commit.peer for commit in swarm.commits()}, "it is paid for nothing"


async def test_get_part__withheld__open_steps_are_served_and_sealed_ones_are_not(
    tmp_path: Path,
) -> None:
    rules = make_papers("ann").spec.message.rules
    async with pipeline(tmp_path, "ann0", "bob0", peers_per_stage=2) as two:
        work, key = two.works["ann0"], two.papers.session.key
        close = two.close(0, ann0=(0,), bob0=(1,))
        await two.forward("ann0", unit=ItemNumber(0))
        own = await work.commits.commit(close)
        assert isinstance(own[0], OwnCommit)
        part = calls.PartName(grad_commit=own[0].signed.message.digest(), chunk=ChunkIndex(0))
        asked = calls.GetPart(part=part)
        at = work.station
        liar = Work(
            Station(work.book, tmp_path / "ann0", at.peers, at.session, at.tell),
            lambda stage: at.compute,
            behaviour=behaviour_of("withheld", rules),
        )
        await liar.states.resume()

        assert (await Answers(liar).get_part(key, asked, ()))[1]
        liar.station.applied = StepNumber(1)  # as if a seal had named it
        with pytest.raises(NotFound):
            await Answers(liar).get_part(key, asked, ())
        await liar.close()
