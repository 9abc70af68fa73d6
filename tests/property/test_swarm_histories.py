"""Whole jobs over three stages with everything that goes wrong, checked while they go.

Each history is checked while it goes (`swarm_histories.World`): copies always fit their neighbours,
no copy gives way to an older one, in every StepClose each unit counts once in every stage, a valid
seal follows from what was said, pay is what was sealed, every averaged chunk is the exact mean over
the sealed units, a step whose sums are lost pays nothing, replay of the journal is the state, and
the job ends.
"""

from collections import Counter
from functools import cache

import pytest

from tests.support.swarm_histories import World
from training.swarm import step

BLOCK, NUM_BLOCKS, AT_NIGHT = 25, 2, 80  # 50 histories in the gate, 2,000 at night

EXPECTED = (
    "PeerLost", "PeerReturned", "PeerLeaving", "Resumed", "UnitsDone", "UnitsLost", "UnitsLacked",
    "LinkBroken", "PartsDenied", "Redo", "EndedWithoutUpdate", "destroy", "wipe", "kill", "freeze",
    "cut", "part", "lose_parts", "trainer", "join", "lost_sum", "lapsed", "updates",
)  # fmt: skip


@cache
def played(block: int) -> Counter[str]:
    """What happened in the histories of a block."""
    seen: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        world = World(seed, step.advance)
        world.run()
        seen += world.seen
    return seen


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=[pytest.mark.nightly] if block >= NUM_BLOCKS else [])
        for block in range(AT_NIGHT)
    ],
)
def test_histories__whatever_goes_wrong__no_unit_is_lost_or_counted_twice(block: int) -> None:
    assert played(block)["updates"] > 2 * BLOCK  # of three steps each


def test_histories__of_all_seeds__everything_happens() -> None:
    """A history in which nothing went wrong would show nothing."""
    seen = sum((played(block) for block in range(NUM_BLOCKS)), Counter[str]())

    assert [name for name in EXPECTED if not seen[name]] == []


def test_histories__without_faults__all_steps_have_an_update_and_nothing_is_redone() -> None:
    world = World(1, step.advance, num_faults=0)

    world.run()

    assert world.seen["updates"] == 3
    assert not world.seen["Redo"]
