"""Orders by browser wallets: what a wallet is shown, and the post of what it signed."""

import secrets

from fastapi import Response

from contracts.terms.messages import JobSpec, decode_message
from contracts.terms.signatures import Signed, expect
from market.api.context import ApiDep, KeyedDep, WorkDep, answer, carry_out
from market.api.routes.jobs import accept_job
from market.api.routing import Routes
from market.bodies.jobs import OrderLike, PostOrder
from market.bodies.routes import POST_ORDER, POST_TYPED_DATA
from market.service.order_like import check_budget, typed_order, write_order
from market.service.ports import UnitOfWork

router = Routes(tags=["orders"])


@router.on(POST_TYPED_DATA)
async def post_typed_data(
    api: ApiDep, work: WorkDep, wanted: OrderLike, this: KeyedDep
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


@router.on(POST_ORDER)
async def post_orders(api: ApiDep, work: WorkDep, posted: PostOrder, this: KeyedDep) -> Response:
    """Order work, as `POST /jobs`, for who cannot encode a signed message."""
    spec = expect(Signed(decode_message(posted.spec), posted.signature), JobSpec)
    return await accept_job(spec.encoded(), posted.permit, api, work, this)
