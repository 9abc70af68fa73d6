"""Why an offer may not serve a job, and what would change that."""

from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.jobs import Excluded
from market.bodies.offers import HEARTBEAT_MILLIS
from market.domain.matching import Need, asks_of, exclusions_of, judge
from market.domain.offers import Candidate
from market.domain.reputation import Reputation, standing

NOW = UnixMillis(1_000_000)
NEED = Need(PricePerPflop(20), 100, BaseUnits(5), UnixSeconds(2000), NOW, frozenset({"cpu/a"}))


def offer(**changed: Any) -> Candidate:
    values: dict[str, Any] = {
        "offer": Digest(bytes(32)),
        "account": Address(bytes(20)),
        "price": PricePerPflop(10),
        "memory_bytes": 200,
        "flops_per_second": 1,
        "available_from": UnixSeconds(0),
        "expires_at": UnixSeconds(3000),
        "heard_at": NOW,
        "leased": False,
        "free_stake": BaseUnits(50),
        "device_class": "cpu/a+cpu",
    }
    return Candidate(**(values | changed))


def excluded(constraint: str, offers: int, would_fit: str) -> Excluded:
    return Excluded(constraint=constraint, offers=offers, would_fit=would_fit)


def test_asks__nothing_excludes_it__is_in_the_book() -> None:
    judged = judge(NEED, [offer()])

    assert [ask.price for ask in asks_of(judged)] == [10]
    assert exclusions_of(NEED, judged) == ()


def test_asks__somebody_with_a_name__stands_in_the_book_by_it() -> None:
    known = Reputation(matches=20, mismatches=1)

    asks = asks_of(judge(NEED, [offer(), offer(reputation=known)]))

    assert [ask.standing for ask in asks] == [standing(Reputation()), standing(known)]


@pytest.mark.parametrize(
    ("changed", "constraint", "would_fit"),
    [
        ({"price": 25}, "price", "price_ceiling 0.000025 tokens"),
        ({"memory_bytes": 64}, "memory", "memory 5.96e-08 GiB"),
        ({"free_stake": 4}, "stake", "min_stake 0.000004 tokens"),
        ({"device_class": "cpu/b"}, "device", "a device of the calibration table: cpu/a"),
        ({"expires_at": 1999}, "window", "deadline 1970-01-01 00:33:19 UTC"),
        ({"available_from": 1001}, "start", "wait until 1970-01-01 00:16:41 UTC"),
        ({"available_from": 10**15}, "start", "wait until the end of time"),
        ({"heard_at": None}, "heartbeat", "an agent that answers"),
        ({"heard_at": NOW - HEARTBEAT_MILLIS - 1}, "heartbeat", "an agent that answers"),
        ({"leased": True}, "leased", "wait for the end of its lease"),
        (
            {"reputation": Reputation(mismatches=1)},
            "reputation",
            "an account that was not found lying",
        ),
    ],
)
def test_exclusions__one_constraint_fails__names_it_and_what_would_fit(
    changed: dict[str, Any], constraint: str, would_fit: str
) -> None:
    judged = judge(NEED, [offer(**changed)])

    assert asks_of(judged) == []
    assert exclusions_of(NEED, judged) == (excluded(constraint, 1, would_fit),)


def test_exclusions__cheapest_relaxation__is_of_an_offer_that_fails_nothing_else() -> None:
    offers = [offer(price=21, memory_bytes=1), offer(price=30), offer(price=40)]

    found = {each.constraint: each for each in exclusions_of(NEED, judge(NEED, offers))}

    assert found["price"] == excluded("price", 3, "price_ceiling 0.00003 tokens")
    assert found["memory"] == excluded("memory", 1, "memory 9.31e-10 GiB")
