"""Does a job's outcome say what became of it?"""

from typing import get_args

import pytest

from contracts.governance.claims import PayTree
from contracts.terms.items import Ranges
from market.bodies.jobs import JobOutcome
from market.domain.jobs import SENTENCES, JobState, Wanted, outcome, trained_steps
from tests.support.history import make_spec, seal_over


@pytest.mark.parametrize(
    ("state", "wanted", "trained", "said"),
    [
        ("draft", "running", 0, "unfunded"),
        ("funded", "running", 0, "waiting"),
        ("matched", "running", 0, "starting"),
        ("running", "running", 0, "training"),
        ("running", "running", 9, "training"),
        ("running", "paused", 9, "paused"),
        ("running", "cancelled", 9, "cancelling"),
        ("running", "running", 10, "settling"),
        ("running", "cancelled", 10, "settling"),
        ("finished", "running", 10, "finished"),
        ("closed", "running", 10, "finished"),
        ("closed", "cancelled", 4, "stopped"),
        ("closed", "running", 0, "failed"),
        ("failed", "running", 3, "failed"),
    ],
)
def test_outcome__state_wish_and_step__say_it(
    state: str, wanted: str, trained: int, said: str
) -> None:
    assert outcome(JobState(state), Wanted(wanted), trained=trained, steps=10) == said


def test_sentences__each_outcome__has_one() -> None:
    assert set(SENTENCES) == set(get_args(JobOutcome))


@pytest.mark.parametrize(
    ("next_item", "unsealed", "steps"),
    [(0, (), 0), (7, ((2, 4),), 1), (30, ((29, 30),), 9), (33, (), 10)],
)
def test_trained_steps__rounds_that_lack_peers__count_as_far_as_their_items_go(
    next_item: int, unsealed: Ranges, steps: int
) -> None:
    spec = make_spec(units_per_step=3, steps=10)
    seal = seal_over(spec.job(), 12, PayTree(())).model_copy(
        update={"next": next_item, "unsealed": unsealed}
    )

    assert trained_steps(seal, spec.batch) == steps
