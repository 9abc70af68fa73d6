"""Offers and leases: what a provider's agent talks to."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import BadSignature, Conflict, Expired, InsufficientStake, NotFound
from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, DigestPath, WorkDep, answer, body, documented
from market.api.cursors import asked
from market.api.refusals import CHAIN, SIGNED_MESSAGE, refused
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
from market.service.accept_lease import accept_lease
from market.service.hear import hear_lease, hear_offer
from market.service.leases import lease_topic
from market.service.listing import Asked
from market.service.post_offer import post_offer, withdraw_offer
from market.service.show_offers import list_offers, show_lease, show_live_leases
from verification.distances.thresholds import shipped_calibration

router = APIRouter(tags=["offers"])


@router.post(
    "/offers",
    response_model=OfferStored,
    status_code=201,
    openapi_extra=documented(SignedBody),
    responses=refused(*SIGNED_MESSAGE, Expired, InsufficientStake, *CHAIN),
)
async def post_offers(
    api: ApiDep, work: WorkDep, posted: Annotated[SignedBody, body(SignedBody)]
) -> Response:
    """Offer a machine."""
    row = await post_offer(posted.signed, api.market.clock(), work, api.market.chain)
    is_measured = shipped_calibration().admits(row.device_class)
    stored = OfferStored(offer=row.offer, withdrawn=row.withdrawn, takes_checked_jobs=is_measured)
    return answer(stored, 201)


@router.get("/offers", response_model=OffersView)
async def get_offers(api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]) -> Response:
    """List offers that stand or are leased, cheapest first."""
    return answer(await list_offers(asked, api.market.clock(), work))


@router.delete(
    "/offers/{name}",
    status_code=204,
    openapi_extra=documented(Withdrawal),
    responses=refused(NotFound, BadSignature),
)
async def delete_offer(
    offer: DigestPath,
    api: ApiDep,
    work: WorkDep,
    withdrawal: Annotated[Withdrawal, body(Withdrawal)],
) -> Response:
    """Take an offer back; a lease that it has goes on."""
    await withdraw_offer(offer, withdrawal.signature, api.market.clock(), work)
    return Response(status_code=204)


@router.post(
    "/offers/{name}/heartbeat",
    response_model=LeasesView,
    openapi_extra=documented(Heartbeat),
    responses=refused(NotFound, BadSignature, Expired),
)
async def post_offer_heartbeat(
    offer: DigestPath,
    api: ApiDep,
    work: WorkDep,
    beat: Annotated[Heartbeat, body(Heartbeat)],
    wait: Annotated[
        int,
        Query(
            ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a lease, if there is none"
        ),
    ] = 0,
) -> Response:
    """An agent is alive; the answer is its live leases, at once or when the first one comes."""
    with api.arrivals.of(lease_topic(offer)) as news:
        found = await hear_offer(
            offer, beat.at, beat.signature, api.market.clock(), work, api.session_keys
        )
        if wait and not found.leases:
            await api.arrivals.wait(news, wait)
            found = await show_live_leases(offer, work)
    return answer(found)


@router.get("/leases/{name}", response_model=LeaseView, responses=refused(NotFound))
async def get_lease(lease: DigestPath, work: WorkDep) -> Response:
    """A lease."""
    return answer(await show_lease(lease, work))


@router.post(
    "/leases/{name}/accept",
    response_model=LeaseView,
    openapi_extra=documented(AcceptLease),
    responses=refused(*SIGNED_MESSAGE, NotFound, Conflict, Expired),
)
async def post_accept(
    lease: DigestPath,
    api: ApiDep,
    work: WorkDep,
    accepted: Annotated[AcceptLease, body(AcceptLease)],
) -> Response:
    """Bind a provider to a job; the market reserves the stake on chain."""
    now, chain = api.market.clock(), api.market.chain
    async with work:
        await accept_lease(lease, accepted.signed, now, work, chain)
        return answer(await show_lease(lease, work))


@router.post(
    "/leases/{name}/heartbeat",
    response_model=LeaseHeard,
    openapi_extra=documented(Heartbeat),
    responses=refused(NotFound, BadSignature, Conflict, Expired),
)
async def post_lease_heartbeat(
    lease: DigestPath, api: ApiDep, work: WorkDep, beat: Annotated[Heartbeat, body(Heartbeat)]
) -> Response:
    """A peer is alive; the answer is the state of its lease."""
    now = api.market.clock()
    row = await hear_lease(lease, beat.at, beat.signature, now, work)
    return answer(LeaseHeard.of(row, heard_at=now))
