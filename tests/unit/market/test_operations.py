"""What became of a pause, a resume and a cancel, by how their job stands."""

from typing import Any

import pytest

from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.jobs import DONE, Action, JobState, OperationOutcome, Standing, operation_outcome


def standing(state: JobState, **changed: Any) -> Standing:
    values: dict[str, Any] = {
        "state": state,
        "wish": 1,
        "heeded": 0,
        "is_hosted": True,
        "had_money": True,
        "refundable_at": None,
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


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.REFUNDED])
def test_outcome__job_ended_before_it_was_paused__has_failed(state: JobState) -> None:
    assert of(Action.PAUSE, standing(state)) == OperationOutcome("failed", error="ended")
    assert of(Action.PAUSE, standing(state, heeded=1)) == DONE


def test_outcome__cancelled__waits_for_each_party_in_turn() -> None:
    seen = [
        of(Action.CANCEL, standing(state, refundable_at=UnixSeconds(7), is_hosted=hosted))
        for state, hosted in (
            (JobState.FUNDED, False),
            (JobState.FUNDED, True),
            (JobState.RUNNING, True),
            (JobState.FINISHED, True),
            (JobState.CLOSED, False),
            (JobState.REFUNDED, False),
        )
    ]

    waits = ["host", "coordinator", "coordinator", "close", "refund_delay", None]
    assert [each.waits_for for each in seen] == waits
    assert seen[-2].until == UnixMillis(7000)
    assert seen[-1] == DONE


def test_outcome__dropped_draft__is_done_unless_its_money_came_after_all() -> None:
    assert of(Action.CANCEL, standing(JobState.FAILED, had_money=False)) == DONE
    assert of(Action.CANCEL, standing(JobState.FAILED)).waits_for == "close"
