"""Moments of offers: windows, heartbeats, clocks."""

from typing import Any

import pytest

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import Expired
from contracts.terms.ids import Address, SessionKey
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis
from market.domain.offers import (
    CLOCK_SKEW_MILLIS,
    OfferState,
    check_moment,
    check_offer,
    offer_state,
)

NOW = UnixMillis(1_000_000)


@pytest.mark.parametrize("skew", [0, CLOCK_SKEW_MILLIS, -CLOCK_SKEW_MILLIS])
def test_check_moment__within_two_minutes__is_heard(skew: int) -> None:
    check_moment(UnixMillis(NOW + skew), now=NOW, previous=None)


@pytest.mark.parametrize("skew", [CLOCK_SKEW_MILLIS + 1, -CLOCK_SKEW_MILLIS - 1])
def test_check_moment__clock_that_is_off__is_expired(skew: int) -> None:
    with pytest.raises(Expired):
        check_moment(UnixMillis(NOW + skew), now=NOW, previous=None)


@pytest.mark.parametrize("step", [0, -1])
def test_check_moment__not_after_the_last_one__is_expired(step: int) -> None:
    with pytest.raises(Expired):
        check_moment(UnixMillis(NOW + step), now=NOW, previous=NOW)


@pytest.mark.parametrize(
    ("withdrawn", "leased", "expires_at", "state"),
    [
        (False, False, 2000, OfferState.OPEN),
        (True, False, 2000, OfferState.WITHDRAWN),
        (False, True, 2000, OfferState.LEASED),
        (False, False, 1000, OfferState.EXPIRED),
    ],
)
def test_offer_state__by_what_happened__is_one_of_four(
    withdrawn: bool, leased: bool, expires_at: int, state: OfferState
) -> None:
    found = offer_state(withdrawn=withdrawn, leased=leased, expires_at=expires_at, now=NOW)

    assert found == state


def make_offer(**changed: int) -> Offer:
    values: dict[str, Any] = {
        "account": Address(bytes(20)),
        "session_key": SessionKey(bytes(32)),
        "nonce": 1,
        "price": PricePerPflop(5),
        "device_class": "cpu",
        "memory_bytes": 1,
        "flops_per_second": 1,
        "bandwidth": 1,
        "available_from": 0,
        "expires_at": 2000,
    }
    return Offer(**(values | changed))


def test_check_offer__window_that_is_open__stands() -> None:
    check_offer(make_offer(), now=NOW)


@pytest.mark.parametrize("changed", [{"expires_at": 1000}, {"available_from": 2000}])
def test_check_offer__window_that_is_over_or_empty__is_expired(changed: dict[str, int]) -> None:
    with pytest.raises(Expired):
        check_offer(make_offer(**changed), now=NOW)
