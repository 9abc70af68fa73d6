"""What is shown of offers, of the leases that they become, and of who makes them."""

from collections.abc import Sequence

from contracts.terms.amounts import UINT64_MAX
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis
from market.bodies.offers import LeasesView, LeaseView, OffersView, OfferView, ProviderView
from market.domain.reputation import is_trusted
from market.service.find_job import need
from market.service.leases import heard_of
from market.service.listing import Asked, Listing
from market.service.ports import UnitOfWork
from market.service.reputation import reputation_view, reputations_of
from market.service.rows import JobRow, LeaseRow, OfferRow

OFFERS = Listing(OfferRow, "price", UINT64_MAX)


async def list_offers(asked: Asked, now: UnixMillis, work: UnitOfWork) -> OffersView:
    """A part of all offers that stand or are leased, cheapest first.

    Raises:
        Malformed: the cursor is none of this list.
    """
    async with work:
        part = await OFFERS.part(
            asked, work, lambda row: row.expires_at * 1000 > now, withdrawn=False
        )
        return OffersView(offers=await _offer_views(part.rows, work), next=part.next)


async def show_provider(account: Address, now: UnixMillis, work: UnitOfWork) -> ProviderView:
    """An account's reputation and offers; a stranger has a reputation too."""
    async with work:
        reputation = (await reputations_of([account], work))[account]
        rows = await work[OfferRow].where(withdrawn=False, order="price", account=account)
        standing = [row for row in rows if row.expires_at * 1000 > now]
        return ProviderView(
            account=account,
            is_matched=is_trusted(reputation),
            reputation=reputation_view(reputation),
            offers=await _offer_views(standing, work),
        )


async def show_lease(lease: Digest, work: UnitOfWork) -> LeaseView:
    """A lease.

    Raises:
        NotFound: no such lease.
    """
    async with work:
        row = need(await work[LeaseRow].get(lease), "lease", lease=lease)
        return (await lease_views([row], work))[0]


async def show_live_leases(offer: Digest, work: UnitOfWork) -> LeasesView:
    """Leases of an offer that are not over."""
    async with work:
        rows = await work[LeaseRow].where(live_offer=offer)
        return LeasesView(leases=await lease_views(rows, work) if rows else ())


async def lease_views(rows: Sequence[LeaseRow], work: UnitOfWork) -> tuple[LeaseView, ...]:
    """Leases, in the given order. The caller is inside a transaction."""
    heard = await heard_of((row.lease for row in rows), work)
    jobs = {name: await work[JobRow].get(name) for name in sorted({row.job for row in rows})}
    return tuple(
        LeaseView.of(row, spec=job.signed, heard_at=heard.get(row.lease))
        for row in rows
        if (job := jobs[row.job]) is not None
    )


async def _offer_views(rows: Sequence[OfferRow], work: UnitOfWork) -> tuple[OfferView, ...]:
    heard = await heard_of((row.offer for row in rows), work)
    return tuple(
        OfferView.of(
            row,
            heard_at=heard.get(row.offer),
            state="open" if row.lease is None else "leased",
        )
        for row in rows
    )
