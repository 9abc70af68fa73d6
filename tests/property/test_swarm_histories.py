"""Whole jobs over three stages with everything that goes wrong, and mutations that they catch.

Each history is checked while it goes (`swarm_histories.World`): copies always fit their neighbours,
no copy gives way to an older one, in every StepClose each unit counts once in every stage, a valid
seal follows from what was said, pay is what was sealed, every averaged chunk is the exact mean over
the sealed units, a step whose sums are lost pays nothing, replay of the journal is the state, and
the job ends.
"""

from collections import Counter
from functools import cache
from types import ModuleType

import pytest

from contracts.terms.errors import InvalidSeal
from tests.support.mutation import mutant
from tests.support.swarm_histories import Advance, World
from training.swarm import closing, copies, step

BLOCK, NUM_BLOCKS = 25, 8  # 200 histories
MORE_BLOCKS = 80  # behind the `chaos` marker: 2,000 more

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


@pytest.mark.parametrize("block", range(NUM_BLOCKS))
def test_histories__whatever_goes_wrong__no_unit_is_lost_or_counted_twice(block: int) -> None:
    assert played(block)["updates"] > 2 * BLOCK  # of three steps each


@pytest.mark.chaos
@pytest.mark.parametrize("block", range(NUM_BLOCKS, NUM_BLOCKS + MORE_BLOCKS))
def test_histories__many_more__no_unit_is_lost_or_counted_twice(block: int) -> None:
    assert played(block)["updates"] > 2 * BLOCK


def test_histories__of_all_seeds__everything_happens() -> None:
    """A history in which nothing went wrong would show nothing."""
    seen = sum((played(block) for block in range(NUM_BLOCKS)), Counter[str]())

    assert [name for name in EXPECTED if not seen[name]] == []


def test_histories__without_faults__all_steps_have_an_update_and_nothing_is_redone() -> None:
    world = World(1, step.advance, num_faults=0)

    world.run()

    assert world.seen["updates"] == 3
    assert not world.seen["Redo"]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (copies, "draft.done[place].attempt < fresh.attempt and", "True and"),
        (closing, " for place, copy in draft.done.items() if copy.peer not in out}",
         " for place, copy in draft.done.items()}"),
        (copies, "if place not in gone}", "}"),
        (closing, "commits=tuple(each for each in draft.commits if each[0].peer not in out)",
         "commits=draft.commits"),
        (closing, "    ends = UnixMillis(state.at + state.terms.exchange_timeout)\n"
         "    return replace(state, phase=Averaging(",
         "    ends = NEVER\n    return replace(state, phase=Averaging("),
    ],
    ids=["duplicate_accepted", "redo_skipped_after_a_strike", "redo_skipped_after_a_loss",
         "struck_commits_stay", "sum_waited_for_without_end"],
)  # fmt: skip
def test_histories__one_line_changed__some_history_fails(
    module: ModuleType, old: str, new: str
) -> None:
    changed: Advance = mutant(module, old, new, step).advance

    assert any(fails(seed, changed) for seed in range(4 * BLOCK))


def fails(seed: int, advance: Advance) -> bool:
    """Whether a history breaks a rule, or does not end, under another machine."""
    try:
        World(seed, advance).run()
    except (AssertionError, InvalidSeal):
        return True
    return False
