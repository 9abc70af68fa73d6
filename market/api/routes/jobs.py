"""Jobs: posting, quotes, and the stream of kept items and reports."""

from typing import Annotated

from fastapi import Query, Request, Response

from contracts.terms.encoding import MAX_MESSAGE_BYTES, decode
from contracts.terms.errors import Malformed
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
    carry_out,
    read_bytes,
)
from market.api.cursors import asked
from market.api.routing import Routes
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
from market.bodies.offers import AuditorsView
from market.bodies.routes import (
    GET_AUDITORS,
    GET_CHECKPOINTS,
    GET_COINS,
    GET_JOB,
    GET_JOBS,
    GET_LANE,
    GET_MESSAGES,
    GET_SNAPSHOTS,
    POST_CHECKPOINT,
    POST_JOB,
    POST_MESSAGES,
    POST_QUOTE,
    POST_REPORTS,
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

router = Routes(tags=["jobs"])

After = Annotated[int, Query(ge=0, le=2**53, description="of what was read last; 0: nothing was")]
JOBS_PAGE = 200  # if nothing else is asked


@router.on(POST_JOB)
async def post_jobs(
    api: ApiDep,
    work: WorkDep,
    posted: PostJob,
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


@router.on(POST_QUOTE)
async def post_quote(api: ApiDep, work: WorkDep, asked: QuoteRequest) -> QuoteView:
    """What a job would cost, and whether it would be admitted and matched now."""
    quoted = await quote_job(
        asked.spec,
        now=api.market.clock(),
        epoch_seconds=await api.epoch_seconds(),
        work=work,
        blobs=api.market.blobs,
    )
    return quoted


@router.on(GET_JOBS)
async def get_jobs(work: WorkDep, asked: Annotated[Asked, asked(JOBS_PAGE)]) -> JobsView:
    """List jobs, newest first."""
    return await list_jobs(asked, work)


@router.on(GET_JOB)
async def get_job(job: JobPath, api: ApiDep, work: WorkDep) -> JobView:
    """A job with everything that its members and its poster ask for."""
    return await show_job(job, work, api.booked)


@router.on(POST_MESSAGES)
async def post_messages(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    request: Request,
    who: Annotated[Caller, caller("jobs")],
) -> Stored:
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
    return stored


@router.on(GET_MESSAGES)
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


@router.on(GET_SNAPSHOTS)
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
    return _in_msgpack(encoded)


@router.on(GET_COINS)
async def get_coins(
    job: JobPath,
    work: WorkDep,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=COINS_PAGE, description="steps at most")] = COINS_PAGE,
) -> CoinsView:
    """Anchored steps beyond `after`, with their coins as far as they count."""
    return await coins_of_job(job, work, after=after, limit=limit)


@router.on(GET_LANE)
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
    return _in_msgpack(page.encoded())


@router.on(GET_AUDITORS)
async def get_auditors(job: JobPath, work: WorkDep) -> AuditorsView:
    """The outside auditors of a job, fixed before it was opened."""
    return await show_auditors(job, work)


@router.on(POST_REPORTS)
async def post_reports(job: JobPath, work: WorkDep, posted: PostReports) -> Stored:
    """Tell people how the steps went."""
    return await store_reports(job, posted.reports, posted.signature, work)


@router.on(POST_CHECKPOINT)
async def post_checkpoint(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    posted: PostCheckpoint,
) -> CheckpointStored:
    """Say which index lists the weights of one's stage, or why they were not uploaded."""
    wanted = await store_checkpoint(
        job,
        posted,
        now=api.market.clock(),
        work=work,
        histories=api.market.histories,
        blobs=api.market.blobs,
    )
    return CheckpointStored(wanted=wanted)


@router.on(GET_CHECKPOINTS)
async def get_checkpoints(job: JobPath, api: ApiDep, work: WorkDep) -> CheckpointsView:
    """Where the trained weights are, stage by stage."""
    return await claimed_checkpoints(job, work, api.market.blobs)


def _in_msgpack(encoded: bytes) -> Response:
    return Response(encoded, media_type=GET_MESSAGES.media)


def _items(data: bytes) -> list[bytes]:
    value = decode(data, max_bytes=MAX_MESSAGES_BYTES)
    if not isinstance(value, list) or len(value) > MAX_MESSAGES_POSTED:
        raise Malformed(f"an array of at most {MAX_MESSAGES_POSTED} items")
    items = [item for item in value if isinstance(item, bytes)]
    if len(items) != len(value) or any(len(item) > MAX_MESSAGE_BYTES for item in items):
        raise Malformed(f"an item is bytes, at most {MAX_MESSAGE_BYTES} of them")
    return items
