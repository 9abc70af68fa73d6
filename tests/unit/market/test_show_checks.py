"""A stake in hours of income."""

import pytest

from contracts.terms.amounts import BaseUnits
from market.service.show_checks import stake_hours

HOUR = 3_600_000  # ms


@pytest.mark.parametrize(
    ("stake", "earned", "worked", "thousandths"),
    [
        (10, 1, HOUR, 10_000),
        (10, 1, HOUR // 4, 2_500),
        (10, 3, HOUR, 3_333),
        (1, 10**6, HOUR, 0),
        (0, 5, HOUR, 0),
    ],
)
def test_stake_hours__earned_at_this_pace__is_rounded_down(
    stake: int, earned: int, worked: int, thousandths: int
) -> None:
    assert stake_hours(BaseUnits(stake), earned, worked) == thousandths


@pytest.mark.parametrize(("earned", "worked"), [(0, HOUR), (5, 0)])
def test_stake_hours__no_income_yet__is_unknown(earned: int, worked: int) -> None:
    assert stake_hours(BaseUnits(10), earned, worked) is None
