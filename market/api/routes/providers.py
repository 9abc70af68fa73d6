"""What is known of a provider."""

from fastapi import APIRouter, Response

from market.api.context import AccountPath, ApiDep, WorkDep, answer
from market.api.views import provider_view
from market.bodies import ProviderView

router = APIRouter(tags=["providers"])


@router.get("/providers/{name}", response_model=ProviderView)
async def get_provider(account: AccountPath, api: ApiDep, work: WorkDep) -> Response:
    """An account's reputation with its factors; a stranger has one too."""
    async with work:
        return answer(await provider_view(account, api.market.clock(), work))
