"""Slashes: shown to everybody, contested by the convicted, judged by the market's operator."""

import contextlib
from collections.abc import Sequence
from typing import Annotated, cast

from fastapi import APIRouter, Response

from contracts.terms.errors import (
    BadSignature,
    Conflict,
    Forbidden,
    Malformed,
    NotFound,
    Unavailable,
)
from contracts.terms.ids import Address, JobId, PeerId, StepNumber
from contracts.terms.moments import UnixSeconds
from market.api.context import (
    AccountPath,
    ApiDep,
    DigestPath,
    JobPath,
    JudgeDep,
    WorkDep,
    answer,
    body,
    documented,
)
from market.api.cursors import FIRST, Asked, Listing, Part, asked
from market.api.refusals import CHAIN, refused
from market.api.views import job_row
from market.bodies import (
    ContestSlash,
    ConvictionsView,
    ConvictionView,
    JudgeContest,
    PostEvidence,
    SlashesView,
    SlashState,
    SlashView,
)
from market.service.coding import items
from market.service.contests import accounts_of_judge, contest_slash, judge_contest
from market.service.convictions import publish_evidence
from market.service.ports import Chain, UnitOfWork
from market.service.rows import ConvictionRow, SlashRow
from market.service.slash_events import WITH_CASE

router = APIRouter(tags=["slashes"])

CONVICTIONS = Listing(ConvictionRow, "step")
SLASHES = Listing(SlashRow, "convicted_at")


@router.get("/jobs/{name}/convictions", response_model=ConvictionsView, responses=refused(NotFound))
async def get_convictions(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """What a job's seals made slashable, who may show why, and what became of it."""
    return answer(await convictions_of_job(job, work, api.market.chain, asked))


async def convictions_of_job(
    job: JobId, work: UnitOfWork, chain: Chain, asked: Asked = FIRST
) -> ConvictionsView:
    """Convictions of a job with their slashes.

    Raises:
        NotFound: no such job.
    """
    async with work:
        await job_row(job, work)
        part = await CONVICTIONS.part(asked, work, job=job)
        slashes = await _slashes_of(part.rows, work)
    return await _convictions(part, slashes, chain)


@router.get("/accounts/{name}/convictions", response_model=ConvictionsView)
async def get_convictions_of(
    account: AccountPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """What an account was convicted of, in all jobs."""
    return answer(await convictions_of(account, work, api.market.chain, asked))


async def convictions_of(
    account: Address, work: UnitOfWork, chain: Chain, asked: Asked = FIRST
) -> ConvictionsView:
    """Convictions of an account with their slashes."""
    async with work:
        part = await CONVICTIONS.part(asked, work, account=account)
        slashes = await _slashes_of(part.rows, work)
    return await _convictions(part, slashes, chain)


@router.get("/jobs/{name}/slashes", response_model=SlashesView, responses=refused(NotFound))
async def get_slashes(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """Slashes of a job's convicts, and where each part of the stake went."""
    async with work:
        await job_row(job, work)
        part = await SLASHES.part(asked, work, job=job)
    views = [await _view(row, api.market.chain) for row in part.rows]
    return answer(SlashesView(slashes=tuple(views), next=part.next))


@router.post(
    "/jobs/{name}/evidence",
    response_model=SlashView,
    openapi_extra=documented(PostEvidence),
    responses=refused(NotFound, BadSignature, Forbidden, Conflict, Malformed),
)
async def post_evidence(
    posted: Annotated[PostEvidence, body(PostEvidence)], job: JobPath, api: ApiDep, work: WorkDep
) -> Response:
    """An auditor names the bundle that shows what the job's seals ruled; slashing begins."""
    row = await publish_evidence(
        job,
        posted.subject,
        posted.bundle,
        (posted.session_key, posted.signature),
        now=api.market.clock(),
        work=work,
        bundles=api.market.bundles,
        chain=api.market.chain,
    )
    return answer(await _view(row, api.market.chain))


@router.get("/slashes/{name}", response_model=SlashView, responses=refused(NotFound))
async def get_slash(evidence: DigestPath, api: ApiDep, work: WorkDep) -> Response:
    """A slash by its evidence."""
    async with work:
        row = await work[SlashRow].get(evidence)
    if row is None:
        raise NotFound("no such slash", evidence=evidence.hex())
    return answer(await _view(row, api.market.chain))


@router.post(
    "/slashes/{name}/contest",
    response_model=SlashView,
    openapi_extra=documented(ContestSlash),
    responses=refused(NotFound, BadSignature, Conflict, Malformed, *CHAIN),
)
async def post_contest(
    evidence: DigestPath,
    api: ApiDep,
    work: WorkDep,
    posted: Annotated[ContestSlash, body(ContestSlash)],
) -> Response:
    """The convicted shows a bundle that speaks for it; nothing is slashed until it was judged."""
    market = api.market
    row = await contest_slash(
        evidence,
        posted.bundle,
        posted.signature,
        now=market.clock(),
        work=work,
        bundles=market.bundles,
        chain=market.chain,
    )
    return answer(await _view(row, api.market.chain))


@router.post(
    "/slashes/{name}/judgement",
    response_model=SlashView,
    openapi_extra=documented(JudgeContest),
    responses=refused(NotFound, Conflict, Forbidden),
)
async def post_judgement(
    evidence: DigestPath,
    api: ApiDep,
    work: WorkDep,
    who: JudgeDep,
    posted: Annotated[JudgeContest, body(JudgeContest)],
) -> Response:
    """What came of running both bundles again; by the operator, or a host that is no party."""
    row = await judge_contest(
        evidence,
        upheld=posted.upheld,
        by=await accounts_of_judge(who.host, who.owner, work),
        now=api.market.clock(),
        work=work,
    )
    return answer(await _view(row, api.market.chain))


async def _slashes_of(rows: Sequence[ConvictionRow], work: UnitOfWork) -> list[SlashRow]:
    named = tuple(row.evidence for row in rows if row.evidence is not None)
    return await work[SlashRow].where(evidence=named) if named else []


async def _convictions(
    part: Part[ConvictionRow], slashes: Sequence[SlashRow], chain: Chain
) -> ConvictionsView:
    views = {row.evidence: await _view(row, chain) for row in slashes}
    return ConvictionsView(
        convictions=tuple(
            ConvictionView(
                job=row.job,
                subject=row.subject,
                step=StepNumber(row.step),
                account=row.account,
                wanted=row.wanted,
                owed=row.owed,
                auditors=cast(tuple[PeerId, ...], tuple(items(row.auditors))),
                slash=None if row.evidence is None else views[row.evidence],
            )
            for row in part.rows
        ),
        next=part.next,
    )


async def _view(row: SlashRow, chain: Chain) -> SlashView:
    return SlashView(
        evidence=row.evidence,
        job=row.job,
        account=row.account,
        state=cast(SlashState, row.state),
        wanted=row.wanted,
        amount=row.amount,
        restitution=row.restitution,
        bounty=row.bounty,
        burned=row.burned,
        challenger=row.challenger,
        convicted_at=row.convicted_at,
        case=row.case,
        window_ends=await _window_ends(row, chain),
        contest=row.contest,
        announced_by=row.announced_by,
        ended_by=row.ended_by,
    )


async def _window_ends(row: SlashRow, chain: Chain) -> UnixSeconds | None:
    """From the chain's own case: an announcement's event does not say it."""
    if row.case is None or row.state not in WITH_CASE:
        return None
    with contextlib.suppress(Unavailable):  # the rest is worth showing without it
        if found := await chain.slash_case(row.case):
            return found.executable_at
    return None
