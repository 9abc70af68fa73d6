"""How the market itself is; answers while the chain does not."""

from market.api.context import Api, ApiDep, WorkDep
from market.api.routing import Routes
from market.bodies.market import StatusView
from market.bodies.routes import GET_STATUS
from market.service.ports import UnitOfWork
from market.service.show_status import status_of

router = Routes(tags=["status"])


@router.on(GET_STATUS)
async def get_status(api: ApiDep, work: WorkDep) -> StatusView:
    """Chain, queues, jobs by state, anchors, hosts, workers and feeds, each with its age."""
    return await status_view(api, work)


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
