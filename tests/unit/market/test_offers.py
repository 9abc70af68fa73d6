"""Moments of offers: windows, heartbeats, clocks."""

from contextlib import nullcontext
from typing import Any

import pytest

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import Expired
from contracts.terms.ids import Address, SessionKey
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis
from market.bodies.base import CLOCK_SKEW_MILLIS
from market.domain.offers import check_moment, check_offer

NOW = UnixMillis(1_000_000)


@pytest.mark.parametrize(
    ("skew", "previous", "is_heard"),
    [
        (0, None, True),
        (CLOCK_SKEW_MILLIS, None, True),
        (-CLOCK_SKEW_MILLIS, None, True),
        (CLOCK_SKEW_MILLIS + 1, None, False),  # a clock that is off
        (-CLOCK_SKEW_MILLIS - 1, None, False),
        (0, NOW, False),  # not after the last one
        (-1, NOW, False),
        (1, NOW, True),
    ],
)
def test_check_moment__clock_and_last_moment__decide(
    skew: int, previous: UnixMillis | None, is_heard: bool
) -> None:
    with nullcontext() if is_heard else pytest.raises(Expired):
        check_moment(UnixMillis(NOW + skew), now=NOW, previous=previous)


@pytest.mark.parametrize(
    ("changed", "stands"),
    [({}, True), ({"expires_at": 1000}, False), ({"available_from": 2000}, False)],
)
def test_check_offer__window_that_is_over_or_empty__is_expired(
    changed: dict[str, int], stands: bool
) -> None:
    values: dict[str, Any] = {
        "account": Address(bytes(20)), "session_key": SessionKey(bytes(32)), "nonce": 1,
        "price": PricePerPflop(5), "device_class": "cpu", "memory_bytes": 1,
        "flops_per_second": 1, "bandwidth": 1, "available_from": 0, "expires_at": 2000,
    }  # fmt: skip

    with nullcontext() if stands else pytest.raises(Expired):
        check_offer(Offer(**(values | changed)), now=NOW)
