"""What is offered, class by class: how many peers and how much speed up to which price. Pure.

A level counts accounts, not machines: an account sells one slot of a job, so who wants n peers of a
job looks for the first level that holds n. Units: base units for 1e15 FLOPs, FLOP/s as offered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.domain.offers import Candidate, is_heard
from market.domain.reputation import is_trusted


@dataclass(frozen=True)
class Level:
    """All that can be bought up to a price."""

    price: PricePerPflop
    offers: int  # at this price
    peers: int  # accounts up to it
    flops_per_second: int  # of all offers up to it


def is_open(offer: Candidate, now: UnixMillis) -> bool:
    """Whether a job could be matched with it now, as far as that does not depend on the job."""
    begun = offer.available_from * 1000 <= now
    answers = is_heard(offer.heard_at, now) and not offer.leased
    return begun and answers and is_trusted(offer.reputation)


def ladder(offers: Sequence[Candidate]) -> tuple[Level, ...]:
    """The asks by price, each level with all that is below it."""
    levels, accounts, speed = list[Level](), set[Address](), 0
    ordered = sorted(offers, key=lambda offer: offer.price)
    for price, group in groupby(ordered, key=lambda offer: offer.price):
        same = list(group)
        accounts |= {offer.account for offer in same}
        speed += sum(offer.flops_per_second for offer in same)
        levels.append(Level(price, len(same), len(accounts), speed))
    return tuple(levels)


def thinned(levels: Sequence[Level], most: int) -> tuple[Level, ...]:
    """At most so many levels: the first and the last, and those between evenly."""
    if len(levels) <= most:
        return tuple(levels)
    last = len(levels) - 1
    return tuple(levels[place * last // (most - 1)] for place in range(most))


def quantile(levels: Sequence[Level], parts: int, whole: int) -> PricePerPflop | None:
    """The lowest price at which that part of all offers can be bought; None of no offers."""
    total, found = sum(level.offers for level in levels), 0
    for level in levels:
        found += level.offers
        if found * whole >= total * parts:
            return level.price
    return None
