"""What is known of a provider."""

from market.api.context import AccountPath, ApiDep, WorkDep
from market.api.routing import Routes
from market.bodies.offers import ProviderView
from market.bodies.routes import GET_PROVIDER
from market.service.show_offers import show_provider

router = Routes(tags=["providers"])


@router.on(GET_PROVIDER)
async def get_provider(account: AccountPath, api: ApiDep, work: WorkDep) -> ProviderView:
    """An account's reputation with its factors; a stranger has one too."""
    return await show_provider(account, api.market.clock(), work)
