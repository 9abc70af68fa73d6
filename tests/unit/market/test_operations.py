"""What became of a pause, a resume and a cancel, by how their job stands."""

import itertools
from typing import Any

import pytest

from market.domain.jobs import DONE, JobState, OperationOutcome, Standing, operation_outcome

PENDING = {name: OperationOutcome("pending", waits_for=name) for name in ("host", "coordinator")}
SUPERSEDED = OperationOutcome("failed", error="superseded")
ENDED = OperationOutcome("failed", error="ended")


@pytest.mark.parametrize(
    ("actions", "states", "changed", "expected"),
    [
        ("pause resume", "draft funded", {}, DONE),  # no round sees it any more, or again
        ("pause", "matched", {}, PENDING["host"]),  # until that lets go
        ("pause", "matched", {"is_hosted": False}, DONE),
        ("resume", "matched", {}, DONE),
        ("pause resume", "running", {}, PENDING["coordinator"]),
        ("pause resume", "running", {"is_hosted": False}, PENDING["host"]),
        ("pause resume", "running finished failed closed", {"heeded": 1}, DONE),
        ("pause", "running", {"wish": 2}, DONE),  # a later wish leaves what was heeded done
        ("pause", "finished failed closed", {}, ENDED),
        ("cancel", "running", {}, PENDING["coordinator"]),
        ("cancel", "running", {"is_hosted": False}, PENDING["host"]),
        ("cancel", "finished failed closed", {}, DONE),  # nobody works for it any more
    ],
)
def test_outcome__an_action_and_how_its_job_stands__says_what_it_waits_for(
    actions: str, states: str, changed: dict[str, Any], expected: OperationOutcome
) -> None:
    values: dict[str, Any] = {"wish": 1, "heeded": 0, "is_hosted": True} | changed
    for action, state in itertools.product(actions.split(), states.split()):
        job = Standing(JobState(state), **values)

        assert operation_outcome(action, 1, job, superseded=False) == expected
        assert operation_outcome(action, 1, job, superseded=True) == SUPERSEDED
