"""The step machine's indices and the plain definitions agree, in each state of random histories."""

from collections import Counter
from dataclasses import replace

from contracts.terms.moments import UnixMillis
from tests.support import plain_duties as plain
from tests.support.swarm_histories import World
from training.swarm import closing, copies, membership, step
from training.swarm.closing import _fits
from training.swarm.duties import duties_of, is_exchanged, parts_wanted
from training.swarm.events import Effect, Event, GradCommitted, Redo, UnitsDone
from training.swarm.state import Closed, Committed, SwarmState, Working, at_work

HISTORIES = range(8)  # every fourth with a matrix that two stages share


class Compared:
    """`advance` that compares what it is asked about with the plain definitions."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, before: SwarmState, event: Event) -> tuple[SwarmState, tuple[Effect, ...]]:
        """The machine's answer, after comparing."""
        after, effects = step.advance(before, event)
        compare_report(before, event)
        compare_state(after)
        self.seen[type(after.phase).__name__] += 1
        self.seen["lost"] += compare_losses(after)
        return after, effects


def compare_report(before: SwarmState, event: Event) -> None:
    match before.phase, event:
        case Working(), UnitsDone() if event.step == before.step:
            after, effects = copies.take_copies(before, event)
            assert isinstance(after.phase, Working)
            undone = [place for each in effects if isinstance(each, Redo) for place in each.places]
            assert (after.phase.draft.done, undone) == plain.done_after(before, event)
        case ((Working(draft) | Closed(draft)), GradCommitted()) if (
            event.commit.step == before.step
        ):
            assert _fits(draft, event) == plain.fits(draft, event.commit, event.units)


def compare_state(now: SwarmState) -> None:
    assert list(duties_of(now).items()) == list(plain.duties_of(now).items())
    assert membership.free_to_go(now) == plain.free_to_go(now)
    for stage in now.terms.stages:
        assert at_work(now, stage) == plain.at_work(now, stage)
    if isinstance(now.phase, Closed):
        assert closing.uncommitted(now.phase.draft) == plain.uncommitted(now.phase.draft)
    if isinstance(now.phase, Committed):
        assert parts_wanted(now) == plain.parts_wanted(now)
        assert is_exchanged(now) == plain.is_exchanged(now)


def compare_losses(now: SwarmState) -> bool:
    """Whether somebody's parts would be given up, were it as late as that for all who are lost."""
    if not isinstance(now.phase, Committed):
        return False
    late = replace(now, at=UnixMillis(now.at + 2 * now.terms.redo_after))
    found = closing.unserved_by_lost(late, now.phase)
    assert found == plain.unserved_by_lost(late)
    return bool(found)


def test_indices__every_state_of_histories_with_faults__are_what_the_definitions_say() -> None:
    compared = Compared()

    for seed in HISTORIES:
        World(seed, compared).run()

    assert {"Working", "Closed", "Committed", "Averaging", "Finished"} <= compared.seen.keys()
    assert compared.seen["lost"]
