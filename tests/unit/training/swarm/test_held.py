"""The poster's pause and cancel in the state machine: between steps, and never in one."""

from dataclasses import replace

from contracts.terms.ids import StepNumber
from tests.unit.training.swarm.factories import HALVES, A, B, Swarm, terms
from training.swarm.duties import missing_places
from training.swarm.events import (
    BuildSeal,
    Checked,
    GoOnAsked,
    HoldAsked,
    PeerLost,
    PeerReturned,
    Resumed,
    SealDue,
    SealWanted,
    StopAsked,
)
from training.swarm.state import Closed, Sealing, Working


def at_work(*, is_checked: bool = False) -> Swarm:
    swarm = Swarm(replace(terms(peers=2, steps=3), is_checked=is_checked))
    swarm.join(A, B)
    return swarm


def held(*, is_checked: bool = False) -> Swarm:
    """A pause after the first of three steps."""
    swarm = at_work(is_checked=is_checked)
    swarm.tell(HoldAsked(swarm.at))
    swarm.whole_step(HALVES)
    return swarm


def test_hold__asked_in_a_step__is_kept_after_that_step() -> None:
    swarm = at_work()

    swarm.tell(HoldAsked(swarm.at))
    assert not swarm.state.is_held and len(missing_places(swarm.state)) == 6
    swarm.whole_step(HALVES)

    assert swarm.state.is_held and swarm.state.step == 2
    assert missing_places(swarm.state) == ()


def test_hold__resumed__goes_on_with_the_next_step_until_the_last_one() -> None:
    swarm = held()

    swarm.tell(GoOnAsked(swarm.at))
    for _ in range(2):
        swarm.whole_step(HALVES)

    assert BuildSeal(StepNumber(3), last=True) in swarm.effects


def test_hold__units_come_that_were_out__step_waits_with_them() -> None:
    """A stage had nobody when the pause was asked for; what others did of the step is kept."""
    swarm = at_work()
    swarm.tell(PeerLost(A, swarm.at))
    swarm.tell(PeerLost(B, swarm.at))
    swarm.tell(HoldAsked(swarm.at))
    for peer in (A, B):
        swarm.tell(PeerReturned(peer, "", swarm.state.members[peer].applied, swarm.at))

    swarm.work_all(HALVES)
    assert isinstance(swarm.state.phase, Working)
    swarm.tell(GoOnAsked(swarm.at))

    assert isinstance(swarm.state.phase, Closed)


def test_hold__draws_are_open__go_on_in_empty_steps_that_do_not_count() -> None:
    swarm = held(is_checked=True)
    swarm.tell(SealWanted(swarm.at))
    swarm.tell(SealDue(swarm.at))
    assert swarm.state.phase == Sealing(has_update=False, is_empty=True)
    swarm.seal()

    assert swarm.state.is_held
    swarm.tell(GoOnAsked(swarm.at))
    for _ in range(2):
        assert not swarm.state.draining
        swarm.whole_step(HALVES)

    assert swarm.state.draining


def test_cancel__in_a_pause__ends_at_once_and_no_step_is_barren() -> None:
    swarm = held()

    effects = swarm.tell(StopAsked(swarm.at))

    assert effects == (BuildSeal(swarm.state.step, last=True),)


def test_cancel__in_the_pause_of_a_checked_job__drains_first() -> None:
    swarm = held(is_checked=True)

    [effect] = swarm.tell(StopAsked(swarm.at))
    assert isinstance(effect, BuildSeal) and not effect.last
    swarm.seal()
    assert swarm.state.draining
    [effect] = swarm.tell(Checked(True, True, swarm.at))

    assert isinstance(effect, BuildSeal) and effect.last


def test_cancel__coordinator_restarts_in_the_last_step__waits_for_its_members_to_end_it() -> None:
    swarm = at_work()
    swarm.work(A, *HALVES[A])
    swarm.tell(StopAsked(swarm.at))
    swarm.tell(Resumed(swarm.at))
    assert isinstance(swarm.state.phase, Working)
    for peer in (A, B):
        swarm.tell(PeerReturned(peer, "", swarm.state.members[peer].applied, swarm.at))

    swarm.work(B, *HALVES[B])

    assert isinstance(swarm.state.phase, Closed)


def test_cancel__coordinator_restarts_and_nobody_returns__ends_without_them() -> None:
    swarm = at_work()
    swarm.tell(StopAsked(swarm.at))
    swarm.tell(Resumed(swarm.at))

    effects = swarm.wait(swarm.state.terms.lease_grace)

    assert BuildSeal(swarm.state.step, last=True) in effects
