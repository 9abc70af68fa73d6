"""Jobs: posting, quotes, and the stream of kept items and reports."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from contracts.terms.encoding import MAX_MESSAGE_BYTES, decode, encode
from contracts.terms.errors import (
    BadSignature,
    ChainForgot,
    Conflict,
    Equivocation,
    Expired,
    Forbidden,
    InvalidSeal,
    Malformed,
    NotFound,
    Refused,
    Unaffordable,
    Unavailable,
    UnknownVersion,
    WrongBytes,
)
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from market.api.callers import Caller, caller
from market.api.context import (
    Api,
    ApiDep,
    JobPath,
    Keyed,
    KeyedDep,
    WorkDep,
    answer,
    body,
    carry_out,
    documented,
    read_bytes,
)
from market.api.cursors import asked
from market.api.openapi import in_bytes
from market.api.refusals import CHAIN, SIGNED_MESSAGE, refused
from market.bodies.auditing import AuditorsView
from market.bodies.base import (
    COINS_PAGE,
    LANE_PAGE,
    MAX_MESSAGES_BYTES,
    MAX_MESSAGES_POSTED,
    MESSAGES_PAGE,
    SNAPSHOTS_PAGE,
    Stored,
)
from market.bodies.jobs import (
    CheckpointStored,
    CheckpointsView,
    JobPosted,
    JobsView,
    JobView,
    Permit,
    PostCheckpoint,
    PostJob,
    PostReports,
    QuoteRequest,
    QuoteView,
)
from market.bodies.settlement import CoinsView
from market.service.listing import Asked
from market.service.ports import UnitOfWork
from market.service.post_job import post_job, quote_job
from market.service.show_coins import coins_of_job, lane_of_job
from market.service.show_jobs import (
    encoded_messages,
    encoded_snapshots,
    list_jobs,
    show_auditors,
    show_job,
)
from market.service.store_checkpoints import claimed_checkpoints, store_checkpoint
from market.service.store_messages import store_messages
from market.service.store_reports import store_reports

router = APIRouter(tags=["jobs"])

MSGPACK = "application/msgpack"
After = Annotated[int, Query(ge=0, le=2**53, description="of what was read last; 0: nothing was")]
IN_MSGPACK = in_bytes(MSGPACK, encode([[1, b"an item"]]))
JOBS_PAGE = 200  # if nothing else is asked
POSTING = refused(
    *SIGNED_MESSAGE, Expired, Forbidden, NotFound, Conflict, Unaffordable, Refused, *CHAIN
)
"""What a posted job may be refused for."""


@router.post(
    "/jobs",
    response_model=JobPosted,
    status_code=202,
    openapi_extra=documented(PostJob),
    responses=POSTING,
)
async def post_jobs(
    api: ApiDep,
    work: WorkDep,
    posted: Annotated[PostJob, body(PostJob)],
    this: KeyedDep,
) -> Response:
    """Order work; the id comes back at once, the budget goes into escrow next."""
    return await accept_job(posted.signed, posted.permit, api, work, this)


async def accept_job(
    signed: bytes, permit: Permit, api: Api, work: UnitOfWork, this: Keyed
) -> Response:
    """Store a signed JobSpec with its permit, and answer with its id."""
    spec = expect(decode_signed(signed), JobSpec)
    verify_wallet(spec, spec.message.poster, api.market.chain.domain)
    epoch_seconds = await api.epoch_seconds()

    async def make(work: UnitOfWork) -> Response:
        row = await post_job(
            signed,
            permit,
            now=api.market.clock(),
            epoch_seconds=epoch_seconds,
            work=work,
            chain=api.market.chain,
            blobs=api.market.blobs,
        )
        return answer(JobPosted.of(row), 202)

    return await carry_out(this.of(spec.message.poster), work, make)


@router.post(
    "/jobs/quote",
    response_model=QuoteView,
    openapi_extra=documented(QuoteRequest),
    responses=refused(UnknownVersion, *CHAIN),
)
async def post_quote(
    api: ApiDep, work: WorkDep, asked: Annotated[QuoteRequest, body(QuoteRequest)]
) -> Response:
    """What a job would cost, and whether it would be admitted and matched now."""
    quoted = await quote_job(
        asked.spec,
        now=api.market.clock(),
        epoch_seconds=await api.epoch_seconds(),
        work=work,
        blobs=api.market.blobs,
    )
    return answer(quoted)


@router.get("/jobs", response_model=JobsView)
async def get_jobs(work: WorkDep, asked: Annotated[Asked, asked(JOBS_PAGE)]) -> Response:
    """List jobs, newest first."""
    return answer(await list_jobs(asked, work))


@router.get("/jobs/{name}", response_model=JobView, responses=refused(NotFound))
async def get_job(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """A job with everything that its members and its poster ask for."""
    return answer(await show_job(job, work, api.booked))


@router.post(
    "/jobs/{name}/messages",
    response_model=Stored,
    openapi_extra={"requestBody": {"required": True, **in_bytes(MSGPACK, encode([b"an item"]))}},
    responses=refused(
        *SIGNED_MESSAGE,
        NotFound,
        Conflict,
        Equivocation,
        InvalidSeal,
        WrongBytes,
        ChainForgot,
        Unavailable,
    ),
)
async def post_messages(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    request: Request,
    who: Annotated[Caller, caller("jobs")],
) -> Response:
    """Append kept items (a canonical msgpack array of their bytes); by the job's coordinator."""
    items = _items(await read_bytes(request, MAX_MESSAGES_BYTES))
    stored = await store_messages(
        job,
        items,
        by=who.account,
        now=api.market.clock(),
        work=work,
        chain=api.market.chain,
        histories=api.market.histories,
    )
    return answer(stored)


@router.get(
    "/jobs/{name}/messages",
    responses={200: IN_MSGPACK, **refused(NotFound)},
    response_class=Response,
)
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
    return Response(encoded, media_type=MSGPACK)


@router.get(
    "/jobs/{name}/snapshots",
    responses={200: IN_MSGPACK, **refused(NotFound)},
    response_class=Response,
)
async def get_snapshots(
    job: JobPath,
    work: WorkDep,
    after: After = 0,
    limit: Annotated[
        int, Query(ge=1, le=SNAPSHOTS_PAGE, description="snapshots at most")
    ] = SNAPSHOTS_PAGE,
) -> Response:
    """What the chain proved of the job, beyond the first `after`: a msgpack array of snapshots."""
    encoded = await encoded_snapshots(job, work, after=after, limit=limit)
    return Response(encoded, media_type=MSGPACK)


@router.get("/jobs/{name}/coins", response_model=CoinsView, responses=refused(NotFound))
async def get_coins(
    job: JobPath,
    work: WorkDep,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=COINS_PAGE, description="steps at most")] = COINS_PAGE,
) -> Response:
    """Anchored steps beyond `after`, with their coins as far as they count."""
    return answer(await coins_of_job(job, work, after=after, limit=limit))


@router.get(
    "/jobs/{name}/lane",
    responses={200: IN_MSGPACK, **refused(NotFound, Conflict)},
    response_class=Response,
)
async def get_lane(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    first: Annotated[
        int | None, Query(ge=0, le=2**53, description="number of a batch; default: at the opening")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LANE_PAGE, description="batches at most")] = LANE_PAGE,
) -> Response:
    """Batches since the job's opening, or from number `first` on, with all of their leaves."""
    page = await lane_of_job(job, api.market.chain.anchorer, work, first=first, limit=limit)
    return Response(page.encoded(), media_type=MSGPACK)


@router.get("/jobs/{name}/auditors", response_model=AuditorsView, responses=refused(NotFound))
async def get_auditors(job: JobPath, work: WorkDep) -> Response:
    """The outside auditors of a job, fixed before it was opened."""
    return answer(await show_auditors(job, work))


@router.post(
    "/jobs/{name}/reports",
    response_model=Stored,
    openapi_extra=documented(PostReports),
    responses=refused(NotFound, Conflict, BadSignature),
)
async def post_reports(
    job: JobPath, work: WorkDep, posted: Annotated[PostReports, body(PostReports)]
) -> Response:
    """Tell people how the steps went."""
    return answer(await store_reports(job, posted.reports, posted.signature, work))


@router.post(
    "/jobs/{name}/checkpoints",
    response_model=CheckpointStored,
    openapi_extra=documented(PostCheckpoint),
    responses=refused(NotFound, Conflict, Forbidden, BadSignature),
)
async def post_checkpoint(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    posted: Annotated[PostCheckpoint, body(PostCheckpoint)],
) -> Response:
    """Say which index lists the weights of one's stage, or why they were not uploaded."""
    wanted = await store_checkpoint(
        job,
        posted,
        now=api.market.clock(),
        work=work,
        histories=api.market.histories,
        blobs=api.market.blobs,
    )
    return answer(CheckpointStored(wanted=wanted))


@router.get("/jobs/{name}/checkpoints", response_model=CheckpointsView, responses=refused(NotFound))
async def get_checkpoints(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """Where the trained weights are, stage by stage."""
    return answer(await claimed_checkpoints(job, work, api.market.blobs))


def _items(data: bytes) -> list[bytes]:
    value = decode(data, max_bytes=MAX_MESSAGES_BYTES)
    if not isinstance(value, list) or len(value) > MAX_MESSAGES_POSTED:
        raise Malformed(f"an array of at most {MAX_MESSAGES_POSTED} items")
    items = [item for item in value if isinstance(item, bytes)]
    if len(items) != len(value) or any(len(item) > MAX_MESSAGE_BYTES for item in items):
        raise Malformed(f"an item is bytes, at most {MAX_MESSAGE_BYTES} of them")
    return items
