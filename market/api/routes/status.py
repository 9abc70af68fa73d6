"""How the market itself is; answers while the chain does not."""

from fastapi import APIRouter, Response

from market.api.context import Api, ApiDep, WorkDep, answer
from market.bodies.status import StatusView
from market.service.ports import UnitOfWork
from market.service.show_status import status_of

router = APIRouter(tags=["status"])


@router.get("/status", response_model=StatusView)
async def get_status(api: ApiDep, work: WorkDep) -> Response:
    """Chain, queues, jobs by state, anchors, hosts, workers and feeds, each with its age."""
    return answer(await status_view(api, work))


async def status_view(api: Api, work: UnitOfWork) -> StatusView:
    """How the market is now."""
    return await status_of(
        api.market.clock(),
        work,
        api.market.chain,
        version=api.version,
        confirmations=api.confirmations,
        feed=api.watching.standing(),
    )
