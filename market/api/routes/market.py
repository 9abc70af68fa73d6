"""The market for people: depth and demand, and the history of clearing rounds."""

from typing import Annotated

from fastapi import Query, Response

from market.api.context import ApiDep, JobQuery, WorkDep
from market.api.routing import Routes
from market.bodies.market import ROUNDS_PAGE, ClearingRoundsView
from market.bodies.routes import GET_MARKET, GET_ROUNDS
from market.service.show_market import rounds_view, shown_market

router = Routes(tags=["market"])


@router.on(GET_MARKET)
async def get_market(api: ApiDep) -> Response:
    """Offers by device class with their asks, the last prices, and the jobs that wait."""
    shown = await api.kept_market(shown_market).newest()
    return Response(shown.body, media_type="application/json")


@router.on(GET_ROUNDS)
async def get_rounds(
    work: WorkDep,
    after: Annotated[
        int | None, Query(ge=0, le=2**53, description="rounds later than this")
    ] = None,
    before: Annotated[int | None, Query(ge=0, le=2**53, description="rounds earlier")] = None,
    job: JobQuery = None,
    limit: Annotated[int, Query(ge=1, le=ROUNDS_PAGE, description="rounds at most")] = ROUNDS_PAGE,
) -> ClearingRoundsView:
    """Rounds beyond `after`; without it the newest ones, or the newest `before` one."""
    return await rounds_view(work, after=after, before=before, job=job, limit=limit)
