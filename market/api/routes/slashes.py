"""Slashes: shown to everybody, contested by the convicted, judged by the market's operator."""

from typing import Annotated

from fastapi import APIRouter, Response

from contracts.terms.errors import (
    BadSignature,
    Conflict,
    Forbidden,
    Malformed,
    NotFound,
)
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
from market.api.cursors import asked
from market.api.refusals import CHAIN, refused
from market.bodies.slashes import (
    ContestSlash,
    ConvictionsView,
    JudgeContest,
    PostEvidence,
    SlashesView,
    SlashView,
)
from market.service.contests import accounts_of_judge, contest_slash, judge_contest
from market.service.convictions import publish_evidence
from market.service.listing import Asked
from market.service.show_slashes import find_convictions, slash_of, slash_view, slashes_of_job

router = APIRouter(tags=["slashes"])


@router.get("/jobs/{name}/convictions", response_model=ConvictionsView, responses=refused(NotFound))
async def get_convictions(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """What a job's seals made slashable, who may show why, and what became of it."""
    return answer(await find_convictions(work, api.market.chain, asked, job=job))


@router.get("/accounts/{name}/convictions", response_model=ConvictionsView)
async def get_convictions_of(
    account: AccountPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """What an account was convicted of, in all jobs."""
    return answer(await find_convictions(work, api.market.chain, asked, account=account))


@router.get("/jobs/{name}/slashes", response_model=SlashesView, responses=refused(NotFound))
async def get_slashes(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> Response:
    """Slashes of a job's convicts, and where each part of the stake went."""
    return answer(await slashes_of_job(job, work, api.market.chain, asked))


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
    return answer(await slash_view(row, api.market.chain))


@router.get("/slashes/{name}", response_model=SlashView, responses=refused(NotFound))
async def get_slash(evidence: DigestPath, api: ApiDep, work: WorkDep) -> Response:
    """A slash by its evidence."""
    return answer(await slash_of(evidence, work, api.market.chain))


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
    return answer(await slash_view(row, api.market.chain))


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
    return answer(await slash_view(row, api.market.chain))
