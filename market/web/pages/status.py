"""Is the market well, and which chain does it work on?"""

from fastapi import APIRouter, Response

from market.api.context import ApiDep
from market.api.routes.network import network_view
from market.web.rendering import page

router = APIRouter()


@router.get("/status")
async def get_status_page(api: ApiDep) -> Response:
    """The market's chain, contracts and parameters."""
    network = await network_view(api)
    return page("status.html", here="status", now=network.clock, network=network)
