"""A job that runs: where its money is and how long it lasts, and its peers by stage."""

from typing import Annotated

from fastapi import Query

from contracts.terms.ids import MAX_STEPS, JobId
from market.api.context import Api, ApiDep, JobPath, WorkDep
from market.api.routes.earnings import period_of
from market.api.routing import Routes
from market.bodies.earnings import PEERS_PAGE, SPEND_PAGE, PeersView, SpendView
from market.bodies.routes import GET_PEERS, GET_SPEND
from market.service.ports import UnitOfWork
from market.service.show_peers import peers_of
from market.service.show_spend import spend_of

router = Routes(tags=["running jobs"])


@router.on(GET_SPEND)
async def get_spend(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=SPEND_PAGE, description="steps at most")] = SPEND_PAGE,
) -> SpendView:
    """What a job has spent, on whom and step by step, how fast, and how long its budget lasts."""
    return await spend_view(job, api, work, after=after, limit=limit)


@router.on(GET_PEERS)
async def get_peers(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many peers are left out")] = 0,
    limit: Annotated[int, Query(ge=1, le=PEERS_PAGE, description="peers at most")] = PEERS_PAGE,
) -> PeersView:
    """The grid of stages and peers: who serves, what each did last, and what it earned."""
    return await peers_view(job, api, work, after=after, limit=limit)


async def spend_view(
    job: JobId, api: Api, work: UnitOfWork, *, after: int = 0, limit: int = SPEND_PAGE
) -> SpendView:
    """What a job has spent; its steps beyond `after`."""
    now, period = api.market.clock(), await period_of(api)
    async with work:
        return await spend_of(
            job, work, api.followed, after=after, limit=limit, now=now, period=period
        )


async def peers_view(
    job: JobId, api: Api, work: UnitOfWork, *, after: int = 0, limit: int = PEERS_PAGE
) -> PeersView:
    """A job's seats beyond the first `after`."""
    now = api.market.clock()
    async with work:
        return await peers_of(job, work, api.followed, now=now, after=after, limit=limit)
