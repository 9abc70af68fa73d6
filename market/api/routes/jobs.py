"""Jobs: posting, quotes, kept items and reports; what posters ask of theirs; money; the hosts.

A poster pauses, resumes and cancels its job; what became of that is for everybody who knows it.
Browser wallets are shown what they sign of a job. Orders for the escrow are taken from whoever may
sign them, and sent by the market. Rows of jobs are leased to the hosts that run
their coordinators: each shows its own credential, and speaks for itself alone.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Query, Request, Response

from contracts.terms.encoding import MAX_MESSAGE_BYTES, decode
from contracts.terms.errors import Malformed
from contracts.terms.kinds import decode_message
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.callers import Caller, caller
from market.api.context import (
    Api,
    ApiDep,
    DigestPath,
    HostDep,
    JobPath,
    Keyed,
    KeyedDep,
    WorkDep,
    answer,
    body,
    carry_out,
    read_bytes,
)
from market.api.cursors import asked
from market.api.routing import Routes
from market.bodies import jobs, money, routes
from market.bodies.anchors import BeaconsView
from market.bodies.base import (
    ANCHOR_CHAIN_PAGE,
    BEACONS_PAGE,
    MAX_MESSAGES_BYTES,
    MAX_MESSAGES_POSTED,
    MESSAGES_PAGE,
    Stored,
)
from market.bodies.offers import AuditorsView
from market.service.ask_job import ask_job, find_operation
from market.service.host_jobs import claim_jobs, hear_host, register_host
from market.service.life import FOR_HOSTS
from market.service.listing import Asked
from market.service.order_like import check_budget, typed_order, write_order
from market.service.orders import take_order
from market.service.ports import UnitOfWork
from market.service.post_job import post_job, quote_job
from market.service.show_beacons import anchor_chain_of_job, beacons_of_job
from market.service.show_jobs import (
    encoded_messages,
    list_jobs,
    show_auditors,
    show_job,
)
from market.service.show_money import money_of_job, order_view, pay_of_job
from market.service.store_checkpoints import claimed_checkpoints, store_checkpoint
from market.service.store_messages import store_messages
from market.service.store_reports import store_reports

jobs_router = Routes(tags=["jobs"])
wallets_router = Routes(tags=["browser wallets"])
money_router = Routes(tags=["money"])
hosting_router = Routes(tags=["hosting"])
ROUTERS = (jobs_router, wallets_router, money_router, hosting_router)


After = Annotated[int, Query(ge=0, le=2**53, description="of what was read last; 0: nothing was")]
JOBS_PAGE = 200  # if nothing else is asked


@jobs_router.on(routes.POST_JOB)
async def post_jobs(
    api: ApiDep,
    work: WorkDep,
    posted: jobs.PostJob,
    this: KeyedDep,
) -> Response:
    """Order work; the id comes back at once, the budget goes into escrow next."""
    return await accept_job(posted.signed, posted.permit, api, work, this)


async def accept_job(
    signed: bytes, permit: jobs.Permit, api: Api, work: UnitOfWork, this: Keyed
) -> Response:
    """Store a signed JobSpec with its permit, and answer with its id."""
    spec = expect(decode_signed(signed), JobSpec)
    verify_wallet(spec, spec.message.poster, api.market.chain.domain)

    async def make(work: UnitOfWork) -> Response:
        row = await post_job(
            signed,
            permit,
            now=api.market.clock(),
            work=work,
            chain=api.market.chain,
            blobs=api.market.blobs,
        )
        return answer(jobs.JobPosted.of(row), 202)

    return await carry_out(this, spec.message.poster, work, make)


@jobs_router.on(routes.POST_QUOTE)
async def post_quote(api: ApiDep, work: WorkDep, asked: jobs.QuoteRequest) -> jobs.QuoteView:
    """What a job would cost, and whether it would be admitted and matched now."""
    return await quote_job(asked.spec, now=api.market.clock(), work=work, blobs=api.market.blobs)


@jobs_router.on(routes.GET_JOBS)
async def get_jobs(work: WorkDep, asked: Annotated[Asked, asked(JOBS_PAGE)]) -> jobs.JobsView:
    """List jobs, newest first."""
    return await list_jobs(asked, work)


@jobs_router.on(routes.GET_JOB)
async def get_job(job: JobPath, work: WorkDep) -> jobs.JobView:
    """A job with everything that its members and its poster ask for."""
    return await show_job(job, work)


@jobs_router.on(routes.POST_MESSAGES)
async def post_messages(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    request: Request,
    who: Annotated[Caller, caller("jobs")],
) -> Stored:
    """Append kept items (a canonical msgpack array of their bytes); by the job's coordinator."""
    items = _items(await read_bytes(request, MAX_MESSAGES_BYTES))
    return await store_messages(
        job,
        items,
        by=who.account,
        now=api.market.clock(),
        work=work,
        chain=api.market.chain,
        histories=api.market.histories,
    )


@jobs_router.on(routes.GET_MESSAGES)
async def get_messages(
    job: JobPath,
    work: WorkDep,
    after: After = 0,
    limit: Annotated[
        int, Query(ge=1, le=MESSAGES_PAGE, description="items at most")
    ] = MESSAGES_PAGE,
) -> Response:
    """Kept items beyond sequence `after`: a msgpack array of [sequence, bytes]."""
    encoded = await encoded_messages(job, work, after=after, limit=limit)
    return _in_msgpack(encoded)


@jobs_router.on(routes.GET_BEACONS)
async def get_beacons(
    job: JobPath,
    work: WorkDep,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=BEACONS_PAGE, description="steps at most")] = BEACONS_PAGE,
) -> BeaconsView:
    """Anchored steps beyond `after`, with their beacons as far as they count."""
    return await beacons_of_job(job, work, after=after, limit=limit)


@jobs_router.on(routes.GET_ANCHOR_CHAIN)
async def get_anchor_chain(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    first: Annotated[
        int | None, Query(ge=0, le=2**53, description="number of a batch; default: at the opening")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=ANCHOR_CHAIN_PAGE, description="batches at most")
    ] = ANCHOR_CHAIN_PAGE,
) -> Response:
    """Batches since the job's opening, or from number `first` on, with all of their leaves."""
    page = await anchor_chain_of_job(job, api.market.chain.anchorer, work, first=first, limit=limit)
    return _in_msgpack(page.encoded())


@jobs_router.on(routes.GET_AUDITORS)
async def get_auditors(job: JobPath, work: WorkDep) -> AuditorsView:
    """The outside auditors of a job, fixed before it was opened."""
    return await show_auditors(job, work)


@jobs_router.on(routes.POST_REPORTS)
async def post_reports(job: JobPath, work: WorkDep, posted: jobs.PostReports) -> Stored:
    """Tell people how the steps went."""
    return await store_reports(job, posted.reports, posted.signature, work)


@jobs_router.on(routes.POST_CHECKPOINT)
async def post_checkpoint(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    posted: jobs.PostCheckpoint,
) -> jobs.CheckpointStored:
    """Say which index lists the weights of one's stage, or why they were not uploaded."""
    wanted = await store_checkpoint(
        job,
        posted,
        now=api.market.clock(),
        work=work,
        histories=api.market.histories,
        blobs=api.market.blobs,
    )
    return jobs.CheckpointStored(wanted=wanted)


@jobs_router.on(routes.GET_CHECKPOINTS)
async def get_checkpoints(job: JobPath, work: WorkDep) -> jobs.CheckpointsView:
    """Where the trained weights are, stage by stage."""
    return await claimed_checkpoints(job, work)


def _in_msgpack(encoded: bytes) -> Response:
    return Response(encoded, media_type=routes.GET_MESSAGES.media)


def _items(data: bytes) -> list[bytes]:
    value = decode(data, max_bytes=MAX_MESSAGES_BYTES)
    if not isinstance(value, list) or len(value) > MAX_MESSAGES_POSTED:
        raise Malformed(f"an array of at most {MAX_MESSAGES_POSTED} items")
    items = [item for item in value if isinstance(item, bytes)]
    if len(items) != len(value) or any(len(item) > MAX_MESSAGE_BYTES for item in items):
        raise Malformed(f"an item is bytes, at most {MAX_MESSAGE_BYTES} of them")
    return items


# ------------------------------------------------------------------- what a poster asks of its job

Ask = Callable[[jobs.JobAction], Awaitable[Response]]


async def _ask(
    job: JobPath,
    asked: Annotated[jobs.AskJob, body(jobs.AskJob)],
    who: Annotated[Caller, caller("jobs")],
    api: ApiDep,
    work: WorkDep,
    this: KeyedDep,
) -> Ask:
    """A function that asks something of the job for whoever signed the request."""

    async def ask(action: jobs.JobAction) -> Response:
        by, now = who.account, api.market.clock()

        async def make(work: UnitOfWork) -> Response:
            found = await ask_job(job, action, by=by, at=asked.at, now=now, work=work)
            return answer(found, routes.POST_PAUSE.status)

        return await carry_out(this, by, work, make)

    return ask


AskDep = Annotated[Ask, Depends(_ask)]


@jobs_router.on(routes.POST_PAUSE)
async def post_pause(ask: AskDep) -> Response:
    """Begin no step after the one in work; members stay, and what is open is still checked."""
    return await ask("pause")


@jobs_router.on(routes.POST_RESUME)
async def post_resume(ask: AskDep) -> Response:
    """Go on where a pause began."""
    return await ask("resume")


@jobs_router.on(routes.POST_CANCEL)
async def post_cancel(ask: AskDep) -> Response:
    """End the job for good after the step in work; what was done is paid."""
    return await ask("cancel")


@jobs_router.on(routes.GET_OPERATION)
async def get_operation(operation: DigestPath, api: ApiDep, work: WorkDep) -> jobs.OperationView:
    """What became of an operation, and what it waits for."""
    return await find_operation(operation, api.market.clock(), work)


# ------------------------------------------------------------------------- jobs by browser wallets


@wallets_router.on(routes.POST_TYPED_DATA)
async def post_typed_data(
    api: ApiDep, work: WorkDep, wanted: jobs.CloneJob, this: KeyedDep
) -> Response:
    """Write a job down for its poster's wallet; a coordinator is allocated to it."""
    await check_budget(wanted, api.market.chain)

    async def make(work: UnitOfWork) -> Response:
        now = api.market.clock()
        salt = secrets.randbits(52)  # two orders of one moment are two jobs
        network, chain = await api.network(), api.market.chain
        margin = (await chain.times()).margin
        spec = await write_order(wanted, now=now, salt=salt, margin=margin, work=work)
        return answer(await typed_order(spec, network, chain, now=now))

    return await carry_out(this, wanted.poster, work, make)


@wallets_router.on(routes.POST_TYPED_JOB)
async def post_typed_job(
    api: ApiDep, work: WorkDep, posted: jobs.PostTypedJob, this: KeyedDep
) -> Response:
    """Order work, as `POST /jobs`, for who cannot encode a signed message."""
    spec = expect(Signed(decode_message(posted.spec), posted.signature), JobSpec)
    return await accept_job(spec.encoded(), posted.permit, api, work, this)


# ------------------------------------------------------------------------------------------- money


@money_router.on(routes.POST_ORDER)
async def post_order(
    job: JobPath, api: ApiDep, work: WorkDep, posted: money.PostOrder
) -> money.OrderView:
    """Hand in a signed Grant, Bond, Quit, End or Close; the market sends it to the escrow.

    Grant and End are the coordinator's, Bond and Quit the account's, Close the poster's. The same
    order again is answered with what became of it.
    """
    now, chain = api.market.clock(), api.market.chain
    return order_view(await take_order(job, posted.signed, now, work, chain))


@money_router.on(routes.GET_MONEY)
async def get_money(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> money.JobMoney:
    """A job's budget in the escrow, what flows back when, and its accounts by address."""
    times = await api.market.chain.times()
    return await money_of_job(job, asked, times, api.market.clock(), work)


@money_router.on(routes.GET_PAY)
async def get_pay(job: JobPath, work: WorkDep) -> money.PayView:
    """The newest seal with all leaves of its pay tree: all that a claim needs."""
    return await pay_of_job(job, work)


# ------------------------------------------------------------------------------------------- hosts


@hosting_router.on(routes.POST_HOST)
async def post_register(
    api: ApiDep, work: WorkDep, who: HostDep, posted: jobs.RegisterHost
) -> jobs.HostRegistered:
    """Name the coordinators whose wallets this host holds."""
    claims = [(claim.address, claim.signature) for claim in posted.coordinators]
    known = await register_host(who, claims, api.market.clock(), work)
    return jobs.HostRegistered(coordinators=known)


@hosting_router.on(routes.POST_CLAIM)
async def post_claim(
    api: ApiDep,
    work: WorkDep,
    who: HostDep,
    wait: Annotated[
        int,
        Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a job, if it has none"),
    ] = 0,
) -> jobs.HostedJobs:
    """Take every job of this host's coordinators that nobody holds; answers all it holds, at once
    or when there may be a first one."""
    with api.arrivals.of(FOR_HOSTS) as news:
        held = await claim_jobs(who, api.market.clock(), work)
        if wait and not held.jobs:
            await api.arrivals.wait(news, wait)
            held = await claim_jobs(who, api.market.clock(), work)
    return held


@hosting_router.on(routes.POST_HOST_HEARTBEAT)
async def post_heartbeat(
    api: ApiDep, work: WorkDep, who: HostDep, posted: jobs.HostHeartbeat
) -> jobs.HostedJobs:
    """Keep jobs for another while; a job that is missing in the answer is not held any more."""
    return await hear_host(who, posted, api.market.clock(), work)
