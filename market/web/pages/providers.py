"""What is known of a provider: its name and why, its machines, its money."""

from fastapi import APIRouter, Response

from contracts.terms.ids import Address
from market.api.context import AccountPath, ApiDep, WorkDep
from market.api.routes.network import account_view
from market.api.routes.slashes import convictions_of
from market.api.views import provider_view
from market.web.rendering import page

router = APIRouter()

MAX_ENTRIES = 100


@router.get("/providers/{name}")
async def get_provider_page(account: AccountPath, api: ApiDep, work: WorkDep) -> Response:
    """An account."""
    now = api.market.clock()
    async with work:
        provider = await provider_view(account, now, work)
    money = await account_view(Address(account), api, work)
    found = await convictions_of(account, work, api.market.chain)
    return page(
        "provider.html",
        here="market",
        now=now,
        provider=provider,
        money=money,
        entries=money.entries[:MAX_ENTRIES],
        convictions=found.convictions,
    )
