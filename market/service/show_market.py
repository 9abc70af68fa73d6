"""What is offered and what is wanted, class by class, and what clearing rounds have decided.

Units: base units for 1e15 FLOPs, FLOP/s, milliseconds.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.market import (
    ClassView,
    ClearedView,
    ClearingRoundsView,
    ClearingRoundView,
    DemandView,
    MarketView,
)
from market.domain.jobs import JobState
from market.domain.matching import bundle_of
from market.domain.offers import Candidate, is_open, ladder, quantile, thinned
from market.service.candidates import candidates
from market.service.coding import WHY_NOT, WINNERS, spec_of
from market.service.leases import LIVE
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow, RoundRow

MAX_CLASSES = 64
MAX_LEVELS = 40
MAX_DEMAND = 100  # jobs that wait, the oldest
ROUNDS_LOOKED_AT = 200
"""For the last price of a class; one that was not bought since has none."""


@dataclass(frozen=True)
class ShownMarket:
    """Offers and demand at a moment, and how `GET /v1/market` spells them."""

    view: MarketView
    body: bytes

    @property
    def clock(self) -> UnixMillis:
        """Of which moment it is."""
        return self.view.clock

    @property
    def num_offers(self) -> int:
        """Of all classes."""
        return sum(each.offers for each in self.view.classes)


async def shown_market(now: UnixMillis, work: UnitOfWork) -> ShownMarket:
    """Offers and demand now."""
    by_class: dict[str, list[Candidate]] = {}
    async with work:
        for offer in await candidates(now, work):
            by_class.setdefault(offer.device_class, []).append(offer)
        cleared = await _cleared(work)
        demand = await _demand(work)
    highest = max((each.ceiling for each in demand), default=None)
    found = [
        _class_view(name, offers, cleared.get(name), highest, now)
        for name, offers in by_class.items()
    ]
    found.sort(key=lambda each: (-each.offers, each.device_class))
    largest = tuple(found[:MAX_CLASSES])
    view = MarketView(clock=now, num_classes=len(found), classes=largest, demand=demand)
    return ShownMarket(view, view.json_bytes())


async def rounds_view(
    work: UnitOfWork,
    *,
    after: int | None = None,
    before: int | None = None,
    job: JobId | None = None,
    limit: int,
) -> ClearingRoundsView:
    """Rounds that decided something, ascending: those beyond `after`, or else the newest ones.

    Args:
        work: Unit of work.
        after: The number of a round.
        before: The number of a round; the newest before it.
        job: Only its rounds.
        limit: At most this many.
    """
    equals: dict[str, Any] = {} if job is None else {"job": job}
    async with work:
        table = work[RoundRow]
        if after is not None:
            rows = await table.where(order="number", after=after, limit=limit, **equals)
        else:
            newest = await table.where(order="-number", after=before, limit=limit, **equals)
            rows = newest[::-1]
    return ClearingRoundsView(rounds=tuple(map(_round_view, rows)))


def _round_view(row: RoundRow) -> ClearingRoundView:
    return ClearingRoundView.of(
        row,
        ceiling=row.reserve,
        winners=WINNERS.validate_json(row.winners),
        not_matched=WHY_NOT.validate_json(row.excluded).exclusions,
    )


def _class_view(
    name: str,
    offers: list[Candidate],
    cleared: ClearedView | None,
    highest: PricePerPflop | None,
    now: UnixMillis,
) -> ClassView:
    """A class; `highest` is the highest ceiling of the jobs that wait."""
    levels = ladder([offer for offer in offers if is_open(offer, now)])
    lowest_to_highest = (quantile(levels, part, 4) for part in range(5))
    quartiles = tuple(price for price in lowest_to_highest if price is not None)
    return ClassView(
        device_class=name,
        offers=len(offers),
        leased=sum(offer.leased for offer in offers),
        open=sum(level.offers for level in levels),
        quartiles=quartiles,
        levels=thinned(levels, MAX_LEVELS),
        cleared=cleared,
        spread=str(quartiles[0] - highest) if quartiles and highest is not None else None,
    )


async def _cleared(work: UnitOfWork) -> dict[str, ClearedView]:
    rows = await work[RoundRow].where(is_bought=True, order="-number", limit=ROUNDS_LOOKED_AT)
    found: dict[str, ClearedView] = {}
    for row in rows:
        for winner in WINNERS.validate_json(row.winners):
            if row.price is not None:
                found.setdefault(winner.device_class, ClearedView.of(row))
    return found


async def _demand(work: UnitOfWork) -> tuple[DemandView, ...]:
    rows = await work[JobRow].where(
        state=JobState.FUNDED.value, order="posted_at", limit=MAX_DEMAND
    )
    held = await _held([row.job for row in rows], work)
    wanted = (_wanted(row, held[row.job]) for row in rows)
    return tuple(each for each in wanted if each.slots + each.spares)  # else they are on their way


def _wanted(row: JobRow, held: int) -> DemandView:
    spec = spec_of(row).message
    missing = bundle_of(spec).without(held)
    return DemandView(
        job=row.job,
        slots=missing.slots,
        spares=missing.spares,
        ceiling=spec.price_ceiling,
        since=row.posted_at,
        checked=spec.rules.audit is not None,
        not_matched=WHY_NOT.validate_json(row.not_matched).exclusions,
    )


async def _held(jobs: list[JobId], work: UnitOfWork) -> Counter[JobId]:
    """Leases that each job has."""
    leases = await work[LeaseRow].where(job=tuple(jobs), state=LIVE)
    return Counter(lease.job for lease in leases)
