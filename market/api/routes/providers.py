"""What is known of a provider."""

from fastapi import APIRouter, Response

from market.api.context import AccountPath, ApiDep, WorkDep, answer
from market.bodies.offers import ProviderView
from market.service.show_offers import show_provider

router = APIRouter(tags=["providers"])


@router.get("/providers/{name}", response_model=ProviderView)
async def get_provider(account: AccountPath, api: ApiDep, work: WorkDep) -> Response:
    """An account's reputation with its factors; a stranger has one too."""
    return answer(await show_provider(account, api.market.clock(), work))
