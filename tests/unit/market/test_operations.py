"""What became of a pause, a resume and a cancel, by how their job stands."""

from typing import Any

import pytest

from market.domain.jobs import DONE, Action, JobState, OperationOutcome, Standing, operation_outcome


def standing(state: JobState, **changed: Any) -> Standing:
    values: dict[str, Any] = {
        "state": state,
        "wish": 1,
        "heeded": 0,
        "is_hosted": True,
    }
    return Standing(**(values | changed))


def of(action: Action, job: Standing, *, superseded: bool = False) -> OperationOutcome:
    return operation_outcome(action, 1, job, superseded=superseded)


@pytest.mark.parametrize("state", [JobState.DRAFT, JobState.FUNDED])
def test_outcome__paused_before_it_is_matched__is_done_at_once(state: JobState) -> None:
    assert of(Action.PAUSE, standing(state)) == DONE


def test_outcome__matched_and_a_host_has_it__waits_until_that_lets_go() -> None:
    assert of(Action.PAUSE, standing(JobState.MATCHED)).waits_for == "host"
    assert of(Action.PAUSE, standing(JobState.MATCHED, is_hosted=False)) == DONE
    assert of(Action.RESUME, standing(JobState.MATCHED)) == DONE


@pytest.mark.parametrize("action", [Action.PAUSE, Action.RESUME])
def test_outcome__running__waits_for_its_coordinator_to_say_so(action: Action) -> None:
    assert of(action, standing(JobState.RUNNING)).waits_for == "coordinator"
    assert of(action, standing(JobState.RUNNING, is_hosted=False)).waits_for == "host"
    assert of(action, standing(JobState.RUNNING, heeded=1)) == DONE


def test_outcome__later_wish__leaves_what_was_heeded_done_and_the_rest_failed() -> None:
    later = standing(JobState.RUNNING, wish=2)

    assert of(Action.PAUSE, later) == DONE
    assert of(Action.PAUSE, later, superseded=True) == OperationOutcome(
        "failed", error="superseded"
    )


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CLOSED])
def test_outcome__job_ended_before_it_was_paused__has_failed(state: JobState) -> None:
    assert of(Action.PAUSE, standing(state)) == OperationOutcome("failed", error="ended")
    assert of(Action.PAUSE, standing(state, heeded=1)) == DONE


def test_outcome__cancelled__waits_for_its_coordinator_until_nobody_works() -> None:
    seen = [
        of(Action.CANCEL, standing(state, is_hosted=hosted)).waits_for
        for state, hosted in (
            (JobState.RUNNING, False),
            (JobState.RUNNING, True),
            (JobState.FINISHED, True),
            (JobState.CLOSED, False),
            (JobState.FAILED, False),
        )
    ]

    assert seen == ["host", "coordinator", None, None, None]
    assert of(Action.CANCEL, standing(JobState.FAILED)) == DONE
