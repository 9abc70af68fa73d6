"""Adversaries in a swarm: what a lying peer gets sealed, and that the others go on.

Workers count (`CountingCompute`), so the honest end is known to the bit. Nothing checks here yet:
these are the lies that audits, sums' audits and the gate are there for.
"""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.work import RoundClosed
from tallystick.gym.registry import behaviour_of
from tests.faults.test_memory_swarm import STEPS, assert_as_plain
from tests.faults.test_memory_swarm import swarm_of as job_of
from tests.support.swarm_job import MemorySwarm


def swarm_of(folder: Path, *workers: str, lies: dict[str, str], **rules: Any) -> MemorySwarm:
    """Some workers are adversaries, and everybody has items of each step."""
    swarm = job_of(folder, *workers, **rules)
    swarm.together = True
    spec = swarm.papers.spec.message.rules
    swarm.behaviours = {name: behaviour_of(text, spec) for name, text in lies.items()}
    return swarm


def claimed(swarm: MemorySwarm, name: str) -> list[int]:
    """Rounds in which a worker's work counts."""
    peer = swarm.session_of(name).peer
    counted = {digest for closed in swarm.messages(RoundClosed) for digest in closed.weights}
    own = (claim for claim in swarm.claims() if claim.peer == peer)
    return [claim.round for claim in own if claim.digest() in counted]


async def test_swarm__adversaries_whose_time_has_not_come__change_nothing(tmp_path: Path) -> None:
    lies = {
        "ann": "stale:from=99",
        "bob": "huge:share=0",
        "cem": "withheld",
        "dan": "accuser+stamp",
    }
    swarm = swarm_of(tmp_path, *lies, lies=lies, stages=2)

    await swarm.run()

    assert_as_plain(swarm)


async def test_swarm__a_peer_cheats_and_leaves__in_order_after_the_seal(tmp_path: Path) -> None:
    lies = {"bob": "turned:from=2,until=2+leaving:from=2"}
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", lies=lies)

    await swarm.run()

    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))
    assert max(claimed(swarm, "bob")) in (2, 3)
    assert swarm.lines("left", of="bob")
    with pytest.raises(AssertionError):
        assert_as_plain(swarm)


@pytest.mark.simulated_time
@pytest.mark.parametrize(
    ("lie", "stages"),
    [
        ("not_finite_parts", 1),
        pytest.param("oversized_parts", 1, marks=pytest.mark.nightly),
        ("oversized", 2),
    ],
)
async def test_swarm__what_nobody_can_compute_with__others_do_its_items_and_it_is_paid_nothing(
    tmp_path: Path, lie: str, stages: int
) -> None:
    quick = {"exchange_timeout": 600, "commit_timeout": 600} if stages == 1 else {}
    names, lies = ("ann", "bob", "cem", "dan"), {"ann": lie}
    swarm = swarm_of(tmp_path, *names, lies=lies, stages=stages, **quick)
    # What the last stage spoils counts before the stage below reads it: that item leaves the round.
    swarm.in_order = True

    await swarm.run()

    assert swarm.stage_of("ann") == 0 and claimed(swarm, "ann") == []
    assert_as_plain(swarm, is_paid=False)  # it is dealt buckets
