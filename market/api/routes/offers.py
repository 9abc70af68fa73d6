"""Offers and leases: what a provider's agent talks to."""

from typing import Annotated

from fastapi import Query, Response

from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, DigestPath, WorkDep
from market.api.cursors import asked
from market.api.routing import Routes
from market.bodies.base import SignedBody
from market.bodies.offers import (
    AcceptLease,
    Heartbeat,
    LeaseHeard,
    LeasesView,
    LeaseView,
    OfferStored,
    OffersView,
    Withdrawal,
)
from market.bodies.routes import (
    DELETE_OFFER,
    GET_LEASE,
    GET_OFFERS,
    POST_ACCEPT,
    POST_LEASE_HEARTBEAT,
    POST_OFFER,
    POST_OFFER_HEARTBEAT,
)
from market.service.accept_lease import accept_lease
from market.service.hear import hear_lease, hear_offer
from market.service.leases import lease_topic
from market.service.listing import Asked
from market.service.post_offer import post_offer, withdraw_offer
from market.service.show_offers import list_offers, show_lease, show_live_leases
from verification.distances.thresholds import shipped_calibration

router = Routes(tags=["offers"])


@router.on(POST_OFFER)
async def post_offers(api: ApiDep, work: WorkDep, posted: SignedBody) -> OfferStored:
    """Offer a machine."""
    row = await post_offer(posted.signed, api.market.clock(), work, api.market.chain)
    is_measured = shipped_calibration().admits(row.device_class)
    stored = OfferStored(offer=row.offer, withdrawn=row.withdrawn, takes_checked_jobs=is_measured)
    return stored


@router.on(GET_OFFERS)
async def get_offers(api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]) -> OffersView:
    """List offers that stand or are leased, cheapest first."""
    return await list_offers(asked, api.market.clock(), work)


@router.on(DELETE_OFFER)
async def delete_offer(
    offer: DigestPath, api: ApiDep, work: WorkDep, withdrawal: Withdrawal
) -> Response:
    """Take an offer back; a lease that it has goes on."""
    await withdraw_offer(offer, withdrawal.signature, api.market.clock(), work)
    return Response(status_code=204)


@router.on(POST_OFFER_HEARTBEAT)
async def post_offer_heartbeat(
    offer: DigestPath,
    api: ApiDep,
    work: WorkDep,
    beat: Heartbeat,
    wait: Annotated[
        int,
        Query(
            ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a lease, if there is none"
        ),
    ] = 0,
) -> LeasesView:
    """An agent is alive; the answer is its live leases, at once or when the first one comes."""
    with api.arrivals.of(lease_topic(offer)) as news:
        found = await hear_offer(
            offer, beat.at, beat.signature, api.market.clock(), work, api.session_keys
        )
        if wait and not found.leases:
            await api.arrivals.wait(news, wait)
            found = await show_live_leases(offer, work)
    return found


@router.on(GET_LEASE)
async def get_lease(lease: DigestPath, work: WorkDep) -> LeaseView:
    """A lease."""
    return await show_lease(lease, work)


@router.on(POST_ACCEPT)
async def post_accept(
    lease: DigestPath,
    api: ApiDep,
    work: WorkDep,
    accepted: AcceptLease,
) -> LeaseView:
    """Bind a provider to a job; the market reserves the stake on chain."""
    now, chain = api.market.clock(), api.market.chain
    async with work:
        await accept_lease(lease, accepted.signed, now, work, chain)
        return await show_lease(lease, work)


@router.on(POST_LEASE_HEARTBEAT)
async def post_lease_heartbeat(
    lease: DigestPath, api: ApiDep, work: WorkDep, beat: Heartbeat
) -> LeaseHeard:
    """A peer is alive; the answer is the state of its lease."""
    now = api.market.clock()
    row = await hear_lease(lease, beat.at, beat.signature, now, work)
    return LeaseHeard.of(row, heard_at=now)
