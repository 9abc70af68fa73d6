"""Slashes: shown to everybody, contested by the convicted, judged by the market's operator."""

from typing import Annotated

from market.api.context import AccountPath, ApiDep, DigestPath, JobPath, JudgeDep, WorkDep
from market.api.cursors import asked
from market.api.routing import Routes
from market.bodies.routes import (
    GET_CONVICTIONS,
    GET_CONVICTIONS_OF,
    GET_SLASH,
    GET_SLASHES,
    POST_CONTEST,
    POST_EVIDENCE,
    POST_JUDGEMENT,
)
from market.bodies.settlement import (
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

router = Routes(tags=["slashes"])


@router.on(GET_CONVICTIONS)
async def get_convictions(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> ConvictionsView:
    """What a job's seals made slashable, who may show why, and what became of it."""
    return await find_convictions(work, api.market.chain, asked, job=job)


@router.on(GET_CONVICTIONS_OF)
async def get_convictions_of(
    account: AccountPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> ConvictionsView:
    """What an account was convicted of, in all jobs."""
    return await find_convictions(work, api.market.chain, asked, account=account)


@router.on(GET_SLASHES)
async def get_slashes(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> SlashesView:
    """Slashes of a job's convicts, and where each part of the stake went."""
    return await slashes_of_job(job, work, api.market.chain, asked)


@router.on(POST_EVIDENCE)
async def post_evidence(
    posted: PostEvidence, job: JobPath, api: ApiDep, work: WorkDep
) -> SlashView:
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
    return await slash_view(row, api.market.chain)


@router.on(GET_SLASH)
async def get_slash(evidence: DigestPath, api: ApiDep, work: WorkDep) -> SlashView:
    """A slash by its evidence."""
    return await slash_of(evidence, work, api.market.chain)


@router.on(POST_CONTEST)
async def post_contest(
    evidence: DigestPath,
    api: ApiDep,
    work: WorkDep,
    posted: ContestSlash,
) -> SlashView:
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
    return await slash_view(row, api.market.chain)


@router.on(POST_JUDGEMENT)
async def post_judgement(
    evidence: DigestPath,
    api: ApiDep,
    work: WorkDep,
    who: JudgeDep,
    posted: JudgeContest,
) -> SlashView:
    """What came of running both bundles again; by the operator, or a host that is no party."""
    row = await judge_contest(
        evidence,
        upheld=posted.upheld,
        by=await accounts_of_judge(who.host, who.owner, work),
        now=api.market.clock(),
        work=work,
    )
    return await slash_view(row, api.market.chain)
