"""Orders by browser wallets: what a wallet is shown, and the post of what it signed."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Response

from contracts.terms.errors import Conflict, NoMatch, NotFound, Unaffordable
from contracts.terms.messages import JobSpec, decode_message
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed, expect
from contracts.terms.typed_data import (
    DOMAIN_NAME,
    DOMAIN_VERSION,
    PERMIT,
    WalletDomain,
    wallet_request,
)
from market.api.context import Api, ApiDep, KeyedDep, WorkDep, answer, body, carry_out, documented
from market.api.refusals import CHAIN, refused
from market.api.routes.jobs import POSTING, accept_job
from market.bodies import JobPosted, OrderLike, OrderTyped, PostOrder
from market.service.coding import spec_of
from market.service.coordinators import allocate_coordinator
from market.service.order_like import Wish, order_like
from market.service.ports import UnitOfWork
from market.service.show_jobs import job_row

router = APIRouter(tags=["orders"], prefix="/orders")

PERMIT_SECONDS = 3600


@router.post(
    "/typed-data",
    response_model=OrderTyped,
    openapi_extra=documented(OrderLike),
    responses=refused(NotFound, NoMatch, Unaffordable, Conflict, *CHAIN),
)
async def post_typed_data(
    api: ApiDep, work: WorkDep, wanted: Annotated[OrderLike, body(OrderLike)], this: KeyedDep
) -> Response:
    """Write an order down for its poster's wallet; a coordinator is allocated to it."""
    held = (await api.market.chain.account(wanted.poster)).token
    if held < wanted.budget:
        raise Unaffordable(
            "the account holds less than the budget", held=held, budget=wanted.budget
        )

    async def make(work: UnitOfWork) -> Response:
        now = api.market.clock()
        like = spec_of(await job_row(wanted.like, work)).message
        wish = Wish(wanted.name, wanted.steps, wanted.budget, wanted.price_ceiling, wanted.deadline)
        coordinator = await allocate_coordinator(wanted.poster, now, work)
        nonce = secrets.randbits(52)  # two orders of one moment are two jobs
        spec = order_like(like, wish, poster=wanted.poster, coordinator=coordinator, nonce=nonce)
        return answer(await _typed(spec, UnixSeconds(now // 1000 + PERMIT_SECONDS), api))

    return await carry_out(this.of(wanted.poster), work, make)


@router.post(
    "",
    response_model=JobPosted,
    status_code=202,
    openapi_extra=documented(PostOrder),
    responses=POSTING,
)
async def post_orders(
    api: ApiDep, work: WorkDep, posted: Annotated[PostOrder, body(PostOrder)], this: KeyedDep
) -> Response:
    """Order work, as `POST /jobs`, for who cannot encode a signed message."""
    spec = expect(Signed(decode_message(posted.spec), posted.signature), JobSpec)
    return await accept_job(spec.encoded(), posted.permit, api, work, this)


async def _typed(spec: JobSpec, permit_deadline: UnixSeconds, api: Api) -> OrderTyped:
    network, chain = await api.network(), api.market.chain
    chain_id = chain.domain.chain_id
    nonce = (await chain.account(spec.poster)).permit_nonce
    ours = WalletDomain(DOMAIN_NAME, DOMAIN_VERSION, chain_id, chain.domain.settlement)
    tokens = WalletDomain(
        network.token_name, network.token_version, chain_id, network.contracts["token"]
    )
    permit = (spec.poster, network.contracts["escrow"], spec.budget, nonce, permit_deadline)
    return OrderTyped(
        job=spec.job(),
        spec=spec.encoded(),
        order=wallet_request(spec.typed, spec.typed_values(), ours),
        permit=wallet_request(PERMIT, permit, tokens),
        permit_deadline=permit_deadline,
    )
