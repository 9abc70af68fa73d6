"""The market for people: depth and demand, and the history of clearing rounds."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.api.context import ApiDep, WorkDep, answer, parse_bytes
from market.api.quotes import excluded
from market.bodies import (
    ROUNDS_PAGE,
    ClassView,
    ClearedView,
    ClearingRoundsView,
    ClearingRoundView,
    DemandView,
    LevelView,
    MarketView,
    WinnerView,
)
from market.service.ports import UnitOfWork
from market.service.show_market import (
    ClassDepth,
    Demand,
    Depth,
    Round,
    market_depth,
    rounds_of,
)

router = APIRouter(tags=["market"])


@router.get("/market", response_model=MarketView)
async def get_market(api: ApiDep) -> Response:
    """Offers by device class with their asks, the last prices, and the jobs that wait."""
    shown = await api.kept_market(shown_market).newest()
    return Response(shown.body, media_type="application/json")


@router.get("/market/rounds", response_model=ClearingRoundsView)
async def get_rounds(
    work: WorkDep,
    after: Annotated[
        int | None, Query(ge=0, le=2**53, description="rounds later than this")
    ] = None,
    before: Annotated[int | None, Query(ge=0, le=2**53, description="rounds earlier")] = None,
    job: Annotated[str | None, Query(max_length=66, description="32 bytes in hex")] = None,
    limit: Annotated[int, Query(ge=1, le=ROUNDS_PAGE, description="rounds at most")] = ROUNDS_PAGE,
) -> Response:
    """Rounds beyond `after`; without it the newest ones, or the newest `before` one."""
    of_job = None if job is None else JobId(parse_bytes(job, 32))
    return answer(await rounds_view(work, after=after, before=before, job=of_job, limit=limit))


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
    async with work:
        found = await market_depth(now, work)
    view = MarketView(
        clock=now,
        num_classes=found.num_classes,
        classes=tuple(_class_view(each, found) for each in found.classes),
        demand=tuple(map(_demand_view, found.demand)),
    )
    return ShownMarket(view, view.json_bytes())


async def rounds_view(
    work: UnitOfWork,
    *,
    after: int | None = None,
    before: int | None = None,
    job: JobId | None = None,
    limit: int,
) -> ClearingRoundsView:
    """Rounds that decided something; see `rounds_of`."""
    async with work:
        found = await rounds_of(work, after=after, before=before, job=job, limit=limit)
    return ClearingRoundsView(rounds=tuple(map(_round_view, found)))


def _demand_view(found: Demand) -> DemandView:
    return DemandView(
        job=found.job,
        slots=found.slots,
        spares=found.spares,
        ceiling=found.ceiling,
        since=found.since,
        checked=found.checked,
        not_matched=excluded(found.excluded),
    )


def _class_view(found: ClassDepth, market: Depth) -> ClassView:
    ceilings = [each.ceiling for each in market.demand]
    spread = found.quartiles[0] - max(ceilings) if found.quartiles and ceilings else None
    cleared = found.cleared
    return ClassView(
        device_class=found.device_class,
        offers=found.offers,
        leased=found.leased,
        open=found.open,
        quartiles=found.quartiles,
        levels=tuple(
            LevelView(
                price=each.price,
                offers=each.offers,
                peers=each.peers,
                flops_per_second=each.flops_per_second,
            )
            for each in found.levels
        ),
        cleared=None
        if cleared is None
        else ClearedView(
            number=cleared.number, job=cleared.job, price=cleared.price, at=cleared.at
        ),
        spread=None if spread is None else str(spread),
    )


def _round_view(found: Round) -> ClearingRoundView:
    row = found.row
    return ClearingRoundView(
        number=row.number,
        job=row.job,
        at=row.at,
        slots=row.slots,
        spares=row.spares,
        ceiling=row.reserve,
        asks=row.asks,
        price=row.price,
        winners=tuple(
            WinnerView(
                offer=each.offer,
                account=each.account,
                ask=each.ask,
                stage=each.stage,
                device_class=each.device_class,
            )
            for each in found.winners
        ),
        not_matched=excluded(found.excluded),
    )
