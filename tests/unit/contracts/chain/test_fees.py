"""What a transaction offers, and what replaces it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.chain.fees import GWEI, Fees, first_fees, is_outbid, replacement

CAP = 100 * GWEI
BASE_FEES = st.integers(0, 200 * GWEI)


@pytest.mark.parametrize(
    ("base", "maximum"), [(7, GWEI + 14), (10 * GWEI, 21 * GWEI), (80 * GWEI, 100 * GWEI)]
)
def test_first_fees__below_the_cap__may_double_as_far_as_that_goes(base: int, maximum: int) -> None:
    assert first_fees(base, CAP) == Fees(maximum, GWEI)


def test_first_fees__next_block_may_cost_more_than_the_cap__nothing_is_offered() -> None:
    assert first_fees(88 * GWEI, CAP) == Fees(100 * GWEI, GWEI)
    assert first_fees(88 * GWEI + 1, CAP) is None


@given(BASE_FEES)
def test_first_fees__any_base_fee__is_not_outbid_at_once(base: int) -> None:
    fees = first_fees(base, CAP)

    assert fees is None or (fees.tip <= fees.maximum <= CAP and not is_outbid(fees, base))


@given(st.integers(1, 100 * GWEI), st.integers(1, 100 * GWEI), BASE_FEES)
def test_replacement__any_fees__an_eighth_more_of_both_within_the_cap_or_none(
    maximum: int, tip: int, base: int
) -> None:
    old = Fees(max(maximum, tip), tip)

    new = replacement(old, base, CAP)

    if new is not None:
        assert 8 * new.maximum >= 9 * old.maximum and 8 * new.tip >= 9 * old.tip
        assert new.tip <= new.maximum <= CAP and not is_outbid(new, base)
    else:
        least = max(old.maximum, base, old.tip)
        assert 9 * least > 8 * CAP


def test_replacement__repeated__ends_at_the_cap() -> None:
    fees, times = Fees(GWEI, GWEI), 0
    while new := replacement(fees, 0, CAP):
        fees, times = new, times + 1

    assert times < 45 and fees.maximum <= CAP
