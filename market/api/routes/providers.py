"""What is known of a provider."""

from fastapi import APIRouter, Response

from market.api.context import AccountPath, ApiDep, WorkDep, answer
from market.api.schemas import ProviderView
from market.api.views import offer_views, reputation_view
from market.domain.reputation import is_trusted
from market.service.reputation import reputations_of
from market.service.rows import OfferRow

router = APIRouter(tags=["providers"])


@router.get("/providers/{name}", response_model=ProviderView)
async def get_provider(account: AccountPath, api: ApiDep, work: WorkDep) -> Response:
    """An account's reputation with its factors; a stranger has one too."""
    now = api.market.clock()
    async with work:
        reputation = (await reputations_of([account], work))[account]
        rows = await work[OfferRow].where(account=account, withdrawn=False, order="price")
        offers = await offer_views([row for row in rows if row.expires_at * 1000 > now], now, work)
    return answer(
        ProviderView(
            account=account,
            is_matched=is_trusted(reputation),
            reputation=reputation_view(reputation),
            offers=offers,
        )
    )
