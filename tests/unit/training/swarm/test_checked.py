"""A checked job in the state machine: work waits for beacons, and ends in empty steps."""

from dataclasses import replace

import pytest

from contracts.terms.ids import ZERO_DIGEST
from tests.unit.training.swarm.factories import HALVES, JOB, STAGE, A, B, Swarm, terms
from training.swarm.duties import missing_places
from training.swarm.events import (
    BuildSeal,
    Checked,
    NoticeDue,
    PeerReturned,
    SealDue,
    SealWanted,
    SendNotice,
    StopAsked,
    Ticked,
)
from training.swarm.state import Averaging, Closed, Finished, Sealing, Working
from training.swarm.step import MAX_BARREN_STEPS


def checked(steps: int = 3) -> Swarm:
    """Two peers of a checked job."""
    swarm = Swarm(replace(terms(peers=2, steps=steps), is_checked=True))
    swarm.join(A, B)
    return swarm


def draining() -> Swarm:
    """All work is sealed, and draws are open."""
    swarm = checked(steps=1)
    swarm.tell(Checked(True, False, swarm.at))
    swarm.whole_step(HALVES)
    return swarm


def paused() -> Swarm:
    """Three steps in a row came to nothing, and their draws are open."""
    swarm = checked(steps=9)
    swarm.tell(Checked(True, False, swarm.at))
    for _ in range(MAX_BARREN_STEPS):
        swarm.work_all(HALVES)
        swarm.commit(*HALVES)
        swarm.hold(*HALVES)
        assert isinstance(swarm.state.phase, Averaging)
        swarm.now = swarm.state.phase.ends
        swarm.tell(Ticked(swarm.at))  # nobody could sum
        swarm.seal()
    assert swarm.state.paused
    return swarm


def test_advance__too_few_beacons__step_waits_and_closes_with_the_next_one() -> None:
    swarm = checked()
    swarm.tell(Checked(False, False, swarm.at))
    swarm.work_all(HALVES)

    assert isinstance(swarm.state.phase, Working)

    swarm.tell(Checked(True, False, swarm.at))

    assert isinstance(swarm.state.phase, Closed)


def test_advance__last_step_with_work__is_not_the_last_seal() -> None:
    swarm = draining()

    assert BuildSeal(swarm.state.terms.num_steps, last=False) in swarm.effects  # type: ignore[arg-type]
    assert swarm.state.draining and isinstance(swarm.state.phase, Working)
    assert missing_places(swarm.state) == ()


@pytest.mark.parametrize("is_paused", [False, True], ids=["draining", "paused"])
def test_advance__draining_or_paused__seals_what_was_said_without_work_when_it_is_due(
    is_paused: bool,
) -> None:
    swarm = paused() if is_paused else draining()

    assert not swarm.tell(SealWanted(swarm.at))
    [effect] = swarm.tell(SealDue(swarm.at))

    assert isinstance(effect, BuildSeal) and not effect.last
    assert swarm.state.phase == Sealing(has_update=False, is_empty=True)
    swarm.seal()
    assert (swarm.state.to_seal, swarm.state.seal_due) == (0, False)
    assert swarm.state.paused == is_paused and missing_places(swarm.state) == ()


def test_advance__nothing_is_open_any_more__the_empty_step_is_the_last() -> None:
    swarm = draining()

    [effect] = swarm.tell(Checked(True, True, swarm.at))

    assert isinstance(effect, BuildSeal) and effect.last
    swarm.seal(last=True)
    assert isinstance(swarm.state.phase, Finished)


def test_advance__clear_while_something_is_to_be_sealed__is_not_the_last() -> None:
    swarm = draining()
    swarm.tell(SealWanted(swarm.at))
    swarm.tell(Checked(True, True, swarm.at))

    [effect] = swarm.tell(SealDue(swarm.at))

    assert isinstance(effect, BuildSeal) and not effect.last


def test_advance__asked_to_stop__ends_its_step_and_drains() -> None:
    swarm = checked()
    swarm.tell(Checked(True, False, swarm.at))
    swarm.tell(StopAsked(swarm.at))

    swarm.whole_step(HALVES)

    assert swarm.state.draining and not isinstance(swarm.state.phase, Finished)


def test_advance__suspended_while_paused__work_goes_on_without_it() -> None:
    swarm = paused()

    swarm.tell(NoticeDue("suspension", A, STAGE, ZERO_DIGEST, swarm.at))

    assert not swarm.state.paused
    assert len(missing_places(swarm.state)) == 6


def test_advance__sealed_in_a_pause__all_steps_with_work_are_still_to_come() -> None:
    swarm = paused()
    for _ in range(swarm.terms.num_steps):
        swarm.tell(SealDue(swarm.at))
        swarm.seal()
    swarm.tell(PeerReturned(A, "", swarm.state.members[A].applied, swarm.at))

    for _ in range(MAX_BARREN_STEPS, swarm.terms.num_steps):
        assert not swarm.state.draining
        swarm.whole_step(HALVES)

    assert swarm.state.draining


@pytest.mark.parametrize("what", ["missed_report", "missing_data"])
def test_advance__notice_about_an_audit__is_numbered_and_moves_nobody(what: str) -> None:
    swarm = checked()

    [effect] = swarm.tell(NoticeDue(what, A, STAGE, ZERO_DIGEST, swarm.at))  # type: ignore[arg-type]

    assert isinstance(effect, SendNotice)
    said = effect.message
    assert (said.job, said.what, said.number, said.peer) == (JOB, what, 2, A)
    assert A in swarm.state.members and swarm.state.to_seal == 1


def test_advance__convicted__is_no_member_and_its_open_work_is_done_again() -> None:
    swarm = checked()
    swarm.work(A, 0, 1, 2)

    effects = swarm.tell(NoticeDue("suspension", A, STAGE, ZERO_DIGEST, swarm.at))

    notices = [each.message for each in effects if isinstance(each, SendNotice)]
    assert [each.what for each in notices] == ["suspension"]
    assert A not in swarm.state.members
    assert len(missing_places(swarm.state)) == 6
    assert not swarm.tell(NoticeDue("suspension", A, STAGE, ZERO_DIGEST, swarm.at))
