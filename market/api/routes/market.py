"""The market for people: depth and demand, and the history of clearing rounds."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import JobId
from market.api.context import ApiDep, WorkDep, answer, parse_bytes
from market.bodies.market import ROUNDS_PAGE, ClearingRoundsView, MarketView
from market.service.show_market import rounds_view, shown_market

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
