"""Is the market well, and which chain does it work on? Answers while the chain does not."""

from fastapi import APIRouter, Response

from contracts.terms.errors import Unavailable
from market.api.context import Api, ApiDep, WorkDep
from market.api.routes.status import status_view
from market.bodies.network import NetworkView
from market.web.health import checks_of, worst
from market.web.rendering import page

router = APIRouter()


@router.get("/status")
async def get_status_page(api: ApiDep, work: WorkDep) -> Response:
    """How the market is, its chain, contracts and parameters."""
    network = await _network(api)
    status = await status_view(api, work)
    checks = checks_of(status, is_embedded=network is not None and network.embedded)
    return page(
        "status.html",
        here="status",
        now=status.clock,
        network=network,
        market=status,
        checks=checks,
        health=worst(checks),
    )


async def _network(api: Api) -> NetworkView | None:
    """The chain's side; None while no node answers."""
    try:
        return await api.network_view()
    except Unavailable:
        return None
