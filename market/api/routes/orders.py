"""Orders by browser wallets: what a wallet is shown, and the post of what it signed."""

import secrets
from typing import Annotated

from fastapi import APIRouter, Response

from contracts.terms.errors import Conflict, NoMatch, NotFound, Unaffordable
from contracts.terms.messages import JobSpec, decode_message
from contracts.terms.signatures import Signed, expect
from market.api.context import ApiDep, KeyedDep, WorkDep, answer, body, carry_out, documented
from market.api.refusals import CHAIN, refused
from market.api.routes.jobs import POSTING, accept_job
from market.bodies.jobs import JobPosted
from market.bodies.orders import OrderLike, OrderTyped, PostOrder
from market.service.order_like import check_budget, typed_order, write_order
from market.service.ports import UnitOfWork

router = APIRouter(tags=["orders"], prefix="/orders")


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
    await check_budget(wanted, api.market.chain)

    async def make(work: UnitOfWork) -> Response:
        now = api.market.clock()
        nonce = secrets.randbits(52)  # two orders of one moment are two jobs
        spec = await write_order(wanted, now=now, nonce=nonce, work=work)
        network, chain = await api.network(), api.market.chain
        return answer(await typed_order(spec, network, chain, now=now))

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
