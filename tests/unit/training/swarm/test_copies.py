"""Whose copy of a unit counts, over three stages."""

import pytest

from contracts.terms.ids import PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import A, B, C, Swarm, copy, peer, terms
from training.swarm.duties import missing_places, workers_of
from training.swarm.events import (
    EndedWithoutUpdate,
    LinkBroken,
    PeerLost,
    Redo,
    SendStepClose,
    UnitsDone,
    UnitsLost,
)
from training.swarm.state import Closed, Copy, Place, Sealing, Working

A2, B2 = peer("x"), peer("y")  # second peers of the first and the second stage
STAGE_OF = {A: 0, B: 1, C: 2, A2: 0, B2: 1}


def three_stages(units: int = 2, *more: PeerId) -> Swarm:
    swarm = Swarm(terms(peers=1, units=units, chunks=1, stages=3))
    for each in (A, B, C, *more):
        swarm.join(each, stage=STAGE_OF[each])
    return swarm


def place(stage: int, unit: int) -> Place:
    return StageIndex(stage), ItemNumber(unit)


def whole(unit: int, attempt: int = 1, version: object = 0) -> tuple[tuple[Place, Copy], ...]:
    """One pass of a unit through all stages."""
    return tuple(
        copy(who, stage, unit, attempt=attempt, stages=3, version=version)
        for who, stage in ((A, 0), (B, 1), (C, 2))
    )


def report(swarm: Swarm, *copies: tuple[Place, Copy]) -> None:
    swarm.tell(UnitsDone(swarm.state.step, copies, swarm.at))


def done(swarm: Swarm) -> dict[Place, Copy]:
    assert isinstance(swarm.state.phase, Working | Closed)
    return dict(swarm.state.phase.draft.done)


def test_take_copies__higher_attempt_of_the_whole_unit__replaces_all_of_it() -> None:
    swarm = three_stages()
    report(swarm, *whole(0, attempt=1))

    report(swarm, *whole(0, attempt=2, version="again"))

    assert done(swarm) == dict(whole(0, attempt=2, version="again"))


def test_take_copies__newer_copy_of_one_stage__undoes_neighbours_that_do_not_fit() -> None:
    swarm = three_stages()
    report(swarm, *whole(0))

    fresh = copy(B, 1, 0, attempt=2, stages=3, version="again")
    effects = swarm.tell(UnitsDone(swarm.state.step, (fresh,), swarm.at))

    assert done(swarm) == dict([fresh])
    assert effects == (Redo((place(0, 0), place(2, 0))),)


def test_take_copies__older_copy_that_does_not_fit_the_neighbours__is_refused() -> None:
    swarm = three_stages()
    report(swarm, *whole(0, attempt=2)[:1])

    report(swarm, copy(B, 1, 0, attempt=1, stages=3, version="before"))

    assert set(done(swarm)) == {place(0, 0)}


def test_take_copies__peer_of_a_segment_died__its_place_is_missing_and_the_rest_is_known() -> None:
    swarm = three_stages(2, B2)
    report(swarm, *whole(0))
    swarm.tell(PeerLost(B, swarm.at))
    swarm.wait(10_000)

    assert place(1, 0) in missing_places(swarm.state)
    assert set(done(swarm)) == {place(0, 0), place(2, 0)}

    report(swarm, copy(B2, 1, 0, attempt=2, stages=3))

    assert {copy.peer for copy in done(swarm).values()} == {A, B2, C}


def torn(*, committed: bool) -> Swarm:
    """A step of two units that is closed; then B is left out, and its copies are missing."""
    swarm = three_stages(2, B2)
    for unit in range(2):
        report(swarm, *whole(unit))
    if committed:
        swarm.commit(A)
    swarm.tell(LinkBroken(swarm.state.step, B, swarm.at))
    return swarm


def lose(swarm: Swarm, *units: int) -> tuple[object, ...]:
    lost = tuple(ItemNumber(unit) for unit in units)
    return swarm.tell(UnitsLost(swarm.state.step, lost, swarm.at))


def test_lose_units__before_any_step_close__unit_starts_over() -> None:
    swarm = three_stages()
    report(swarm, *whole(0)[:2])

    effects = lose(swarm, 0)

    assert effects == (Redo((place(0, 0), place(1, 0))),)
    assert done(swarm) == {}


def test_lose_units__after_the_close_and_nobody_committed__unit_is_struck_from_all_stages() -> None:
    swarm = torn(committed=False)

    lose(swarm, 0)
    report(swarm, copy(B2, 1, 1, attempt=2, stages=3))

    closes = [effect.message for effect in swarm.effects if isinstance(effect, SendStepClose)]
    assert [close.revision for close in closes] == [0, 1]
    assert {unit for each in closes[1].assignments for unit in each.units} == {1}
    assert len(closes[1].assignments) == 3
    report(swarm, *whole(0, attempt=9))
    assert isinstance(swarm.state.phase, Closed)


def test_lose_units__every_unit_lost_after_the_close__step_ends_without_update() -> None:
    swarm = torn(committed=False)

    effects = lose(swarm, 0, 1)

    assert EndedWithoutUpdate(StepNumber(1)) in effects
    assert isinstance(swarm.state.phase, Sealing)


def test_lose_units__somebody_committed__waits_for_the_deadline() -> None:
    swarm = torn(committed=True)

    assert lose(swarm, 0) == ()
    assert swarm.phase(Working).ends == UnixMillis(swarm.now + swarm.terms.commit_timeout)
    effects = swarm.wait(swarm.terms.commit_timeout)

    assert EndedWithoutUpdate(StepNumber(1)) in effects


def test_link_broken__peer_is_left_out__its_stage_goes_on_without_it() -> None:
    swarm = torn(committed=True)

    assert [member.peer for member in workers_of(swarm.state, StageIndex(1))] == [B2]
    assert missing_places(swarm.state) == (place(1, 0), place(1, 1))
    for unit in range(2):
        report(swarm, copy(B2, 1, unit, attempt=2, stages=3))

    assert swarm.phase(Closed).draft.strikes == 0


def test_take_copies__committed_neighbour_does_not_fit__copy_is_refused() -> None:
    swarm = torn(committed=True)

    report(swarm, copy(B2, 1, 0, attempt=9, stages=3, version="other tensors"))

    assert place(1, 0) in missing_places(swarm.state)


@pytest.mark.parametrize("stage", [0, 2])
def test_link_broken__peer_without_work_or_successor__changes_nothing_or_ends(stage: int) -> None:
    swarm = three_stages()
    only = {0: A, 2: C}[stage]
    before = swarm.state
    assert swarm.tell(LinkBroken(swarm.state.step, only, swarm.at)) == ()
    assert swarm.state == before

    for unit in range(2):
        report(swarm, *whole(unit))
    effects = swarm.tell(LinkBroken(swarm.state.step, only, swarm.at))

    assert EndedWithoutUpdate(StepNumber(1)) in effects
