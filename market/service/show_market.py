"""What is offered and what is wanted, class by class, and what clearing rounds have decided.

The caller is in a transaction. Units: base units for 1e15 FLOPs, FLOP/s, milliseconds.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.domain.bundles import bundle_of
from market.domain.depth import Level, Winner, is_open, ladder, quantile, thinned
from market.domain.jobs import JobState
from market.domain.matching import Exclusion
from market.domain.offers import Candidate
from market.service.candidates import candidates
from market.service.coding import decode_why_not, decode_winners, spec_of
from market.service.leases import LIVE
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow, RoundRow

MAX_CLASSES = 64
MAX_LEVELS = 40
MAX_DEMAND = 100  # jobs that wait, the oldest
ROUNDS_LOOKED_AT = 200
"""For the last price of a class; one that was not bought since has none."""


@dataclass(frozen=True)
class Cleared:
    """The newest round that bought a machine of a class."""

    number: int
    job: JobId
    price: PricePerPflop
    at: UnixMillis


@dataclass(frozen=True)
class ClassDepth:
    """A device class: all its offers, and those that could be matched now."""

    device_class: str
    offers: int
    leased: int
    open: int
    quartiles: tuple[PricePerPflop, ...]  # of open asks: least, 1/4, 1/2, 3/4, greatest
    levels: tuple[Level, ...]  # of open asks
    cleared: Cleared | None


@dataclass(frozen=True)
class Demand:
    """A job that waits for leases."""

    job: JobId
    slots: int
    spares: int
    ceiling: PricePerPflop
    since: UnixMillis
    checked: bool
    excluded: tuple[Exclusion, ...]


@dataclass(frozen=True)
class Depth:
    """The market now."""

    classes: tuple[ClassDepth, ...]  # those with most offers
    num_classes: int
    demand: tuple[Demand, ...]  # the oldest first


@dataclass(frozen=True)
class Round:
    """What a round decided for a job."""

    row: RoundRow
    winners: tuple[Winner, ...]
    excluded: tuple[Exclusion, ...]


async def market_depth(now: UnixMillis, work: UnitOfWork) -> Depth:
    """Offers by class, and jobs that wait."""
    by_class: dict[str, list[Candidate]] = {}
    for offer in await candidates(now, work):
        by_class.setdefault(offer.device_class, []).append(offer)
    cleared = await _cleared(work)
    found = [
        _class_depth(name, offers, cleared.get(name), now) for name, offers in by_class.items()
    ]
    found.sort(key=lambda each: (-each.offers, each.device_class))
    return Depth(tuple(found[:MAX_CLASSES]), len(found), await _demand(work))


async def rounds_of(
    work: UnitOfWork, *, after: int | None, before: int | None, job: JobId | None, limit: int
) -> list[Round]:
    """Rounds that decided something, ascending: those beyond `after`, or else the newest ones.

    Args:
        work: Unit of work.
        after: The number of a round.
        before: The number of a round; the newest before it.
        job: Only its rounds.
        limit: At most this many.
    """
    equals: dict[str, Any] = {} if job is None else {"job": job}
    table = work[RoundRow]
    if after is not None:
        rows = await table.where(order="number", after=after, limit=limit, **equals)
    else:
        newest = await table.where(order="-number", after=before, limit=limit, **equals)
        rows = newest[::-1]
    return [
        Round(row, decode_winners(row.winners), decode_why_not(row.excluded).exclusions)
        for row in rows
    ]


def _class_depth(
    name: str, offers: list[Candidate], cleared: Cleared | None, now: UnixMillis
) -> ClassDepth:
    levels = ladder([offer for offer in offers if is_open(offer, now)])
    quartiles = (quantile(levels, part, 4) for part in range(5))
    return ClassDepth(
        device_class=name,
        offers=len(offers),
        leased=sum(offer.leased for offer in offers),
        open=sum(level.offers for level in levels),
        quartiles=tuple(price for price in quartiles if price is not None),
        levels=thinned(levels, MAX_LEVELS),
        cleared=cleared,
    )


async def _cleared(work: UnitOfWork) -> dict[str, Cleared]:
    rows = await work[RoundRow].where(is_bought=True, order="-number", limit=ROUNDS_LOOKED_AT)
    found: dict[str, Cleared] = {}
    for row in rows:
        for winner in decode_winners(row.winners):
            if row.price is not None:
                newest = Cleared(row.number, row.job, row.price, row.at)
                found.setdefault(winner.device_class, newest)
    return found


async def _demand(work: UnitOfWork) -> tuple[Demand, ...]:
    rows = await work[JobRow].where(
        state=JobState.FUNDED.value, due=None, order="posted_at", limit=MAX_DEMAND
    )
    held = await _held([row.job for row in rows], work)
    wanted = (_wanted(row, held[row.job]) for row in rows)
    return tuple(each for each in wanted if each.slots + each.spares)  # else they are on their way


def _wanted(row: JobRow, held: int) -> Demand:
    spec = spec_of(row).message
    missing = bundle_of(spec).without(held)
    return Demand(
        job=row.job,
        slots=missing.slots,
        spares=missing.spares,
        ceiling=spec.price_ceiling,
        since=row.posted_at,
        checked=spec.rules.audit is not None,
        excluded=decode_why_not(row.not_matched).exclusions,
    )


async def _held(jobs: list[JobId], work: UnitOfWork) -> Counter[JobId]:
    """Leases that each job has."""
    leases = await work[LeaseRow].where(job=tuple(jobs), state=LIVE) if jobs else []
    return Counter(lease.job for lease in leases)
