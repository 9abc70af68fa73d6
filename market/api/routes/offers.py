"""Offers and leases: what a provider's agent talks to."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import BadSignature, Conflict, Expired, InsufficientStake, NotFound
from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, DigestPath, WorkDep, answer, body, documented
from market.api.cursors import Asked, Listing, asked
from market.api.refusals import CHAIN, SIGNED_MESSAGE, refused
from market.api.views import lease_state, lease_views, offer_views
from market.bodies import (
    AcceptLease,
    Heartbeat,
    LeaseHeard,
    LeasesView,
    LeaseView,
    OfferStored,
    OffersView,
    SignedBody,
    Withdrawal,
)
from market.service.accept_lease import accept_lease
from market.service.hear import hear_lease, hear_offer
from market.service.leases import lease_topic
from market.service.ports import UnitOfWork
from market.service.post_offer import post_offer, withdraw_offer
from market.service.rows import LeaseRow, OfferRow
from verification.distances.thresholds import shipped_calibration

router = APIRouter(tags=["offers"])

OFFERS = Listing(OfferRow, "price")


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
    return answer(OfferStored(offer=row.offer, takes_checked_jobs=is_measured), 201)


@router.get("/offers", response_model=OffersView)
async def get_offers(api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]) -> Response:
    """List offers that stand or are leased, cheapest first."""
    now = api.market.clock()
    async with work:
        part = await OFFERS.part(
            asked, work, lambda row: row.expires_at * 1000 > now, withdrawn=False
        )
        views = await offer_views(part.rows, now, work)
    return answer(OffersView(offers=views, next=part.next))


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
        rows = await hear_offer(
            offer, beat.at, beat.signature, api.market.clock(), work, api.session_keys
        )
        if wait and not rows:
            await api.arrivals.wait(news, wait)
            async with work:
                rows = await work[LeaseRow].where(live_offer=offer)
    async with work:
        views = await lease_views(rows, work) if rows else ()
    return answer(LeasesView(leases=views))


@router.get("/leases/{name}", response_model=LeaseView, responses=refused(NotFound))
async def get_lease(lease: DigestPath, work: WorkDep) -> Response:
    """A lease."""
    async with work:
        row = await work[LeaseRow].get(lease)
        if row is None:
            raise NotFound("no such lease", lease=lease.hex())
        return await _lease(row, work)


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
        row = await accept_lease(lease, accepted.signed, now, work, chain)
        return await _lease(row, work)


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
    return answer(LeaseHeard(lease=lease, state=lease_state(row), heard_at=now))


async def _lease(row: LeaseRow, work: UnitOfWork) -> Response:
    return answer((await lease_views([row], work))[0])
