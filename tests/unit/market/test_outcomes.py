"""Does a job's outcome say what became of it?"""

from typing import get_args

import pytest

from market.bodies.jobs import JobOutcome
from market.domain.jobs import SENTENCES, JobState, Wanted, outcome, trained


@pytest.mark.parametrize(
    ("state", "wanted", "step", "said"),
    [
        ("draft", "running", 0, "unfunded"),
        ("funded", "running", 0, "waiting"),
        ("matched", "running", 0, "starting"),
        ("running", "running", 0, "training"),
        ("running", "running", 9, "training"),
        ("running", "paused", 9, "paused"),
        ("running", "cancelled", 9, "cancelling"),
        ("running", "running", 10, "settling"),
        ("running", "cancelled", 12, "settling"),
        ("finished", "running", 12, "finished"),
        ("closed", "running", 10, "finished"),
        ("closed", "cancelled", 4, "stopped"),
        ("closed", "running", 0, "failed"),
        ("failed", "running", 3, "failed"),
    ],
)
def test_outcome__state_wish_and_step__say_it(
    state: str, wanted: str, step: int, said: str
) -> None:
    assert outcome(JobState(state), Wanted(wanted), step=step, steps=10) == said


def test_sentences__each_outcome__has_one() -> None:
    assert set(SENTENCES) == set(get_args(JobOutcome))


@pytest.mark.parametrize(("step", "shown"), [(0, 0), (9, 9), (10, 10), (165, 10)])
def test_trained__steps_that_only_settle__are_not_counted(step: int, shown: int) -> None:
    assert trained(step, steps=10) == shown
