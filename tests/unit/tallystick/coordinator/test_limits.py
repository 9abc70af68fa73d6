"""For how many rounds limits leave room, and how much may be granted."""

from math import inf
from typing import Any

import pytest

from contracts.governance.escrow import Budget, FundingTerms
from contracts.governance.limits import AHEAD_ROUNDS, KEPT_ROUNDS, Accrual
from contracts.terms.ids import ZERO_ADDRESS, Address
from tallystick.coordinator.limits import DAY, available_at, rounds_for
from training.coordinator.ports import Earner, Progress

ONE = Earner(Accrual(0, 0, 0, 10), stake=0, works=True)


def progress(**changed: Any) -> Progress:
    usual: dict[str, Any] = {
        "earners": {Address(bytes([1]) * 20): ONE},
        "rounds_left": 10**6,
        "seconds_a_round": 10.0,
        "seconds_of_work": 100.0,
    }
    return Progress(**usual | changed)


@pytest.mark.parametrize(
    ("changed", "burst", "confirming", "rounds"),
    [
        ({}, 10**9, 12.0, 360),  # an hour of rounds
        ({"seconds_of_work": DAY}, 10**9, 12.0, 8640),  # a day
        ({}, 1000, 12.0, 100),  # what a bucket holds for it
        ({}, 0, 12.0, 2 * (KEPT_ROUNDS + 1 + 2)),  # what it takes to be confirmed in time
        ({}, 10**9, 4000.0, 1200),  # three times that, where it takes longer than an hour
        ({"seconds_a_round": inf}, 1000, 12.0, 100),  # nobody knows yet how long they take
        ({"seconds_a_round": inf}, 0, 12.0, AHEAD_ROUNDS),
        ({"rounds_left": 3}, 10**9, 12.0, 3 + 2 * KEPT_ROUNDS),
    ],
)
def test_rounds_for__job_bucket_and_chain__the_shortest_that_lasts(
    changed: dict[str, Any], burst: int, confirming: float, rounds: int
) -> None:
    assert rounds_for(progress(**changed), [ONE], burst, confirming) == rounds


@pytest.mark.parametrize("left", range(1, 6))
def test_rounds_for__last_rounds__a_raise_is_due_before_an_account_stops(left: int) -> None:
    rounds = rounds_for(progress(rounds_left=left), [ONE], 10**9, 12.0)

    assert rounds // 2 >= KEPT_ROUNDS


def test_available_at__bucket_and_budget__the_lesser_of_them() -> None:
    terms = FundingTerms(ZERO_ADDRESS, burst=100, rate=3600)

    assert available_at(Budget(funded=70), terms, now=9) == 70
    assert available_at(Budget(funded=500), terms, now=9) == 100
    assert available_at(Budget(funded=500, allowance=10, since=9), terms, now=29) == 30
    assert available_at(Budget(funded=5, committed=5), terms, now=9) == 0
