"""Which event a wish asks for, and when the job is as it wants."""

from dataclasses import replace

import pytest

from contracts.terms.ids import StepNumber
from contracts.terms.moments import UnixMillis
from tests.unit.training.swarm.factories import terms
from training.coordinator.heeding import asked_by, is_heeded
from training.coordinator.ports import Wish
from training.swarm.events import GoOnAsked, HoldAsked, StopAsked
from training.swarm.state import Finished, SwarmState

AT = UnixMillis(5)
PAUSE, RESUME, CANCEL = Wish(1, "paused"), Wish(2, "running"), Wish(3, "cancelled")
RUNNING = SwarmState(terms())
ASKED = replace(RUNNING, hold_from=StepNumber(2))
HELD = replace(RUNNING, hold_from=StepNumber(1))


def test_asked_by__what_is_not_so_yet__is_asked_for_once() -> None:
    assert asked_by(PAUSE, RUNNING, AT) == HoldAsked(AT)
    assert asked_by(PAUSE, ASKED, AT) is None
    assert asked_by(RESUME, HELD, AT) == GoOnAsked(AT)
    assert asked_by(RESUME, RUNNING, AT) is None
    assert asked_by(CANCEL, HELD, AT) == StopAsked(AT)


@pytest.mark.parametrize("wish", [PAUSE, RESUME, CANCEL])
@pytest.mark.parametrize(
    "state", [replace(HELD, stopping=True), replace(RUNNING, phase=Finished())]
)
def test_asked_by__job_that_ends__is_left_alone(wish: Wish, state: SwarmState) -> None:
    assert asked_by(wish, state, AT) is None


def test_is_heeded__paused__not_before_the_step_in_work_has_ended() -> None:
    assert [is_heeded(PAUSE, each) for each in (RUNNING, ASKED, HELD)] == [False, False, True]
    assert [is_heeded(RESUME, each) for each in (RUNNING, ASKED, HELD)] == [True, False, False]
    assert is_heeded(CANCEL, replace(HELD, stopping=True)) and not is_heeded(CANCEL, HELD)
