"""Which offers stand (signed, heard lately, not leased), and how many up to which price. Pure.

A level of the depth counts accounts, not machines: an account sells one slot of a job, so who wants
n peers of a job looks for the first level that holds n.

Invariants: an offer is leased to one job at a time; a heartbeat is used once (its moment grows).
Units: prices in base units a PFLOP (1e15 FLOPs), speed in FLOP/s as offered, memory in bytes,
moments in ms unless named seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Expired
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.base import CLOCK_SKEW_MILLIS
from market.bodies.market import LevelView
from market.bodies.offers import HEARTBEAT_MILLIS
from market.domain.reputation import Reputation, is_trusted

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """What matching and clearing need to know of an offer."""

    offer: Digest
    account: Address
    price: PricePerPflop
    memory_bytes: int
    flops_per_second: int
    available_from: UnixSeconds
    expires_at: UnixSeconds
    heard_at: UnixMillis | None
    leased: bool
    free_stake: BaseUnits
    device_class: str
    reputation: Reputation = field(default_factory=Reputation)


def is_heard(heard_at: UnixMillis | None, now: UnixMillis) -> bool:
    """Whether a heartbeat is recent enough for matching."""
    return heard_at is not None and now - heard_at <= HEARTBEAT_MILLIS


def check_offer(offer: Offer, *, now: UnixMillis) -> None:
    """Refuse an offer that could never be matched.

    Raises:
        Expired: it is over already, or before it begins.
    """
    if offer.expires_at * 1000 <= now or offer.expires_at <= offer.available_from:
        raise Expired("the offer's window is over", expires_at=offer.expires_at, now=now // 1000)


def check_moment(at: UnixMillis, *, now: UnixMillis, previous: UnixMillis | None) -> None:
    """Refuse what is replayed, out of order, or from a clock that is off.

    Raises:
        Expired: with `now`, so that a client can see its skew.
    """
    if abs(at - now) > CLOCK_SKEW_MILLIS:
        raise Expired("clocks differ by more than two minutes", at=at, now=now)
    if previous is not None and at <= previous:
        raise Expired("said before: a signed moment is used once", at=at, previous=previous)


def is_open(offer: Candidate, now: UnixMillis) -> bool:
    """Whether a job could be matched with it now, as far as that does not depend on the job."""
    begun = offer.available_from * 1000 <= now
    answers = is_heard(offer.heard_at, now) and not offer.leased
    return begun and answers and is_trusted(offer.reputation)


def ladder(offers: Sequence[Candidate]) -> tuple[LevelView, ...]:
    """The asks by price, each level with all that is below it."""
    levels, accounts, speed = list[LevelView](), set[Address](), 0
    ordered = sorted(offers, key=lambda offer: offer.price)
    for price, group in groupby(ordered, key=lambda offer: offer.price):
        same = list(group)
        accounts |= {offer.account for offer in same}
        speed += sum(offer.flops_per_second for offer in same)
        levels.append(
            LevelView(price=price, offers=len(same), peers=len(accounts), flops_per_second=speed)
        )
    return tuple(levels)


def thinned(rows: Sequence[T], most: int) -> tuple[T, ...]:
    """At most so many rows: the first and the last, and those between evenly."""
    if len(rows) <= most:
        return tuple(rows)
    last = len(rows) - 1
    return tuple(rows[place * last // (most - 1)] for place in range(most))


def quantile(levels: Sequence[LevelView], parts: int, whole: int) -> PricePerPflop | None:
    """The lowest price at which that part of all offers can be bought; None of no offers."""
    total, found = sum(level.offers for level in levels), 0
    for level in levels:
        found += level.offers
        if found * whole >= total * parts:
            return level.price
    return None
