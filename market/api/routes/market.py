"""The market itself: network, faucet and accounts; depth and rounds; its state; batches; blobs.

Its status is answered while the chain does not answer. Batches with their leaves are what audits
need. Blobs go by their BLAKE3 digest: shards of data,
manifests, checkpoints, evidence. Whoever stores one is an account, which is charged for it; whoever
reads one need be nobody.
"""

import re
from typing import Annotated

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from contracts.terms import errors
from contracts.terms.ids import Digest
from market.api.callers import Caller, caller
from market.api.conditional import is_known
from market.api.context import (
    IMMUTABLE,
    AccountPath,
    Api,
    ApiDep,
    DigestPath,
    JobQuery,
    KeyedDep,
    WorkDep,
    announced_bytes,
    answer,
    carry_out,
    stream,
)
from market.api.routing import Routes
from market.bodies import market, routes
from market.bodies.base import MAX_BUNDLE_BYTES, Money
from market.bodies.signing import signed_call
from market.service.coordinators import allocate_coordinator
from market.service.faucet import GIVEN, ask_faucet
from market.service.ports import UnitOfWork
from market.service.rows import FaucetRow
from market.service.show_beacons import batch_of_root
from market.service.show_market import rounds_view
from market.service.show_network import show_account
from market.service.show_status import status_of
from market.service.store_blob import Upload, store_blob

network_router = Routes(tags=["network"])
market_router = Routes(tags=["market"])
status_router = Routes(tags=["status"])
batches_router = Routes(tags=["batches"])
blobs_router = Routes(tags=["blobs"])
ROUTERS = (network_router, market_router, status_router, batches_router, blobs_router)


# ------------------------------------------------------------------------- where a newcomer begins

FAUCET_SECONDS = 20.0
_LOOK_SECONDS = 0.5


@network_router.on(routes.GET_HEALTH)
async def get_health() -> market.HealthView:
    """The process answers; says nothing of what is behind it."""
    return market.HealthView()


@network_router.on(routes.GET_NETWORK)
async def get_network(api: ApiDep) -> market.NetworkView:
    """Chain, contracts, parameters: all that a newcomer needs."""
    return await api.network()


@network_router.on(routes.POST_FAUCET)
async def post_faucet(
    api: ApiDep,
    work: WorkDep,
    asked: market.FaucetRequest,
    this: KeyedDep,
) -> Response:
    """Gas and test tokens, on an embedded chain; waits until they are there."""
    async with work:
        if (known := await this.find(asked.account, work)) is not None:
            return known
    if not (await api.network()).embedded:
        raise errors.WrongConfiguration(
            "this market runs on a public chain and gives nothing away: get gas and tokens there"
        )
    row = await ask_faucet(
        asked.account,
        gas=api.faucet_gas,
        tokens=Money(api.faucet_tokens),
        max_grants=api.faucet_grants,
        now=api.market.clock(),
        work=work,
    )
    response = answer(await _given(row, api, work))
    async with work:
        if await this.find(asked.account, work) is None:
            await this.store(asked.account, response, work)
    return response


async def _given(row: FaucetRow, api: Api, work: UnitOfWork) -> market.FaucetView:
    """Wait for the chain worker; a client that gives up asks again and meets the same grant."""
    ends = api.market.clock() + FAUCET_SECONDS * 1000
    with api.arrivals.of(GIVEN) as news:
        while row.state == "asked":
            if api.market.clock() > ends:
                raise errors.DeadlineExceeded("the faucet has not answered yet: ask again")
            await api.arrivals.wait(news, _LOOK_SECONDS)
            async with work:
                row = await work[FaucetRow].get(row.account, row.number) or row
    if row.state == "refused":
        raise errors.ContractRefused(f"the faucet was refused: {row.refusal}", error=row.refusal)
    sent = [each for each in (row.gas_transaction, row.token_transaction) if each is not None]
    return market.FaucetView(gas=row.gas, tokens=row.tokens, transactions=tuple(sent))


@network_router.on(routes.GET_ACCOUNT)
async def get_account(account: AccountPath, api: ApiDep, work: WorkDep) -> market.AccountView:
    """What an account has on chain, and in its jobs."""
    return await show_account(account, api.market.chain, work)


@network_router.on(routes.POST_COORDINATOR)
async def post_coordinator(
    api: ApiDep, work: WorkDep, this: KeyedDep, who: Annotated[Caller, caller("jobs")]
) -> Response:
    """Allocate a hosted coordinator to the caller's next job.

    It is kept for ten minutes, and for good once that job is in escrow. An account has four that it
    has not paid for, then its oldest again.
    """

    async def make(work: UnitOfWork) -> Response:
        coordinator = await allocate_coordinator(who.account, api.market.clock(), work)
        return answer(market.CoordinatorView(coordinator=coordinator), 201)

    return await carry_out(this, who.account, work, make)


# ------------------------------------------------------------------ depth, demand, clearing rounds


@market_router.on(routes.GET_MARKET)
async def get_market(api: ApiDep) -> Response:
    """Offers by device class with their asks, the last prices, and the jobs that wait."""
    shown = await api.market_view.newest()
    return Response(shown.body, media_type="application/json")


@market_router.on(routes.GET_ROUNDS)
async def get_rounds(
    work: WorkDep,
    after: Annotated[
        int | None, Query(ge=0, le=2**53, description="rounds later than this")
    ] = None,
    before: Annotated[int | None, Query(ge=0, le=2**53, description="rounds earlier")] = None,
    job: JobQuery = None,
    limit: Annotated[
        int, Query(ge=1, le=market.ROUNDS_PAGE, description="rounds at most")
    ] = market.ROUNDS_PAGE,
) -> market.ClearingRoundsView:
    """Rounds beyond `after`; without it the newest ones, or the newest `before` one."""
    return await rounds_view(work, after=after, before=before, job=job, limit=limit)


# ------------------------------------------------------------------------------- how the market is


@status_router.on(routes.GET_STATUS)
async def get_status(api: ApiDep, work: WorkDep) -> market.StatusView:
    """Chain, queues, jobs by state, anchors, hosts, workers and feeds, each with its age."""
    return await status_view(api, work)


async def status_view(api: Api, work: UnitOfWork) -> market.StatusView:
    """How the market is now."""
    return await status_of(
        api.market.clock(),
        work,
        api.market.chain,
        version=api.version,
        confirmations=api.confirmations,
        feed=api.watching.standing(),
    )


# ----------------------------------------------------------------------------------------- batches


@batches_router.on(routes.GET_BATCH)
async def get_batch(root: DigestPath, work: WorkDep) -> Response:
    """A batch with its leaves."""
    shown = await batch_of_root(root, work)
    return answer(shown, headers=IMMUTABLE if shown.beacon is not None else None)


# ------------------------------------------------------------------------------------------- blobs

_RANGE = re.compile(r"bytes=([0-9]{1,12})-([0-9]{1,12})")


@blobs_router.on(routes.PUT_BLOB)
async def put_blob(
    blob: DigestPath,
    api: ApiDep,
    request: Request,
    work: WorkDep,
    who: Annotated[Caller, caller("blobs")],
) -> Response:
    """Store the body under its digest, at the caller's expense.

    Bytes that hash to something else are refused, as is what is beyond the caller's quota
    (`too_large`). One that is here already costs nothing and is not read.
    """
    size = announced_bytes(request, MAX_BUNDLE_BYTES)
    if size is None:
        raise errors.Malformed(
            "Content-Length: say how long the blob is, it is charged before it comes"
        )
    _check_signed(blob, request)
    await store_blob(
        Upload(who.account, blob, size),
        stream(request, size),
        now=api.market.clock(),
        bounds=api.blob_bounds,
        work=work,
        blobs=api.market.blobs,
        uploads=api.uploads,
    )
    return Response(status_code=204)


def _check_signed(blob: Digest, request: Request) -> None:
    """A signed request names the digest of its body, so nothing need come to see that it is wrong.

    Raises:
        WrongBytes: it names another than its path.
    """
    call = signed_call(request.headers.get("authorization", ""))
    if call is not None and call.body != blob:
        raise errors.WrongBytes(
            "the body that was signed has another name", expected=blob.hex(), actual=call.body.hex()
        )


@blobs_router.on(routes.GET_BLOB)
async def get_blob(blob: DigestPath, api: ApiDep, request: Request) -> Response:
    """The bytes of a blob, or those of `Range: bytes=START-END`; other ranges are not looked at."""
    headers = await _headers(blob, api)
    if is_known(request, headers["ETag"]):
        return Response(status_code=304, headers={**IMMUTABLE, "ETag": headers["ETag"]})
    if (asked := _RANGE.fullmatch(request.headers.get("range", ""))) is not None:
        size = int(headers["Content-Length"])
        start, end = int(asked[1]), min(int(asked[2]) + 1, size)
        if start < end:
            headers |= {
                "Content-Length": str(end - start),
                "Content-Range": f"bytes {start}-{end - 1}/{size}",
            }
            part = api.market.blobs.read(blob, start, end)
            return StreamingResponse(part, 206, media_type=routes.OCTETS, headers=headers)
    return StreamingResponse(api.market.blobs.read(blob), media_type=routes.OCTETS, headers=headers)


@blobs_router.on(routes.HEAD_BLOB)
async def head_blob(blob: DigestPath, api: ApiDep) -> Response:
    """Whether a blob is here, and its size."""
    return Response(media_type=routes.OCTETS, headers=await _headers(blob, api))


async def _headers(blob: DigestPath, api: ApiDep) -> dict[str, str]:
    size = await api.market.blobs.size(blob)
    if size is None:
        raise errors.NotFound("no such blob", digest=blob.hex())
    tag = f'"{blob.hex()}"'
    return {**IMMUTABLE, "Accept-Ranges": "bytes", "Content-Length": str(size), "ETag": tag}
