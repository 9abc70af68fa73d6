"""Where a job's work and money are: earnings, spend, peers, checks, and the audit explorer.

Each line is shown from the work to the transaction, or why it waits and until when; a sealed step
with its lines, and a peer-step with its whole trace.
"""

from typing import Annotated

from fastapi import Path, Query

from contracts.terms.errors import Malformed
from contracts.terms.ids import MAX_STEPS, JobId, StepNumber
from contracts.terms.work import MAX_SEQ
from market.api.context import (
    AccountPath,
    ApiDep,
    JobPath,
    JobQuery,
    PeerPath,
    WorkDep,
    parse_bytes,
)
from market.api.routing import Routes
from market.bodies import earnings, routes, tracing
from market.bodies.offers import ChecksView
from market.service.show_checks import checks_of_job
from market.service.show_earnings import earnings_of
from market.service.show_peers import peers_of
from market.service.show_spend import spend_of
from market.service.show_steps import lines_of_step, steps_of
from market.service.trace_work import trace_work
from verification.draws.odds import VOLUMES

earnings_router = Routes(tags=["earnings"])
running_router = Routes(tags=["running jobs"])
checks_router = Routes(tags=["checks"])
tracing_router = Routes(tags=["audit explorer"])
ROUTERS = (earnings_router, running_router, checks_router, tracing_router)


# ---------------------------------------------------------------------------------------- earnings

MAX_CURSOR = 96


@earnings_router.on(routes.GET_EARNINGS)
async def get_earnings(
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
    job: JobQuery = None,
    after: Annotated[str | None, Query(max_length=MAX_CURSOR, description="a cursor")] = None,
    limit: Annotated[
        int, Query(ge=1, le=earnings.EARNINGS_PAGE, description="lines at most")
    ] = earnings.EARNINGS_PAGE,
) -> earnings.EarningsView:
    """Every peer-step and paid audit of an account beyond a cursor: where its pay is, and why."""
    place, now = None if after is None else read_cursor(after), api.market.clock()
    return await earnings_of(
        account, work, api.followed, job=job, after=place, limit=limit, now=now
    )


def read_cursor(text: str) -> tuple[JobId, int]:
    """The place that a cursor names.

    Raises:
        Malformed: it is none of ours.
    """
    name, _, number = text.partition(":")
    if not number.isascii() or not number.isdecimal() or len(number) > 16:
        raise Malformed("after: no cursor of this list")
    return JobId(parse_bytes(name, 32)), int(number)


# --------------------------------------------------------------------------------- a job that runs


@running_router.on(routes.GET_SPEND)
async def get_spend(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=earnings.SPEND_PAGE, description="steps at most")
    ] = earnings.SPEND_PAGE,
) -> earnings.SpendView:
    """What a job has spent, on whom and step by step, how fast, and how long its budget lasts."""
    now = api.market.clock()
    return await spend_of(job, work, api.followed, after=after, limit=limit, now=now)


@running_router.on(routes.GET_PEERS)
async def get_peers(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many peers are left out")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=earnings.PEERS_PAGE, description="peers at most")
    ] = earnings.PEERS_PAGE,
) -> earnings.PeersView:
    """The grid of stages and peers: who serves, what each did last, and what it earned."""
    now = api.market.clock()
    return await peers_of(job, work, api.followed, after=after, limit=limit, now=now)


# ------------------------------------------------------------------------------------------ checks

MAX_FALSIFIED = 10_000_000


@checks_router.on(routes.GET_CHECKS)
async def get_checks(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    falsified: Annotated[
        int | None,
        Query(ge=1, le=MAX_FALSIFIED, description="odds of so many peer-steps of each peer"),
    ] = None,
) -> ChecksView:
    """Audits, rates, stakes and odds of a job's peers; `falsified`: of so many peer-steps, too."""
    volumes = VOLUMES if falsified is None else (falsified,)
    return await checks_of_job(job, work, api.followed, volumes)


# ------------------------------------------------------------------------------ the audit explorer

StepPath = Annotated[int, Path(ge=1, lt=MAX_STEPS, description="number of a step")]


@tracing_router.on(routes.GET_STEPS)
async def get_steps(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=tracing.STEPS_PAGE, description="steps at most")
    ] = tracing.STEPS_PAGE,
) -> tracing.StepsView:
    """Sealed steps beyond `after`: seal, anchor, beacon, and what was drawn and came of it."""
    async with work:
        return await steps_of(job, work, api.followed, after=after, limit=limit)


@tracing_router.on(routes.GET_STEP)
async def get_step(
    job: JobPath,
    step: StepPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many lines are left out")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=tracing.STEP_LINES_PAGE, description="lines at most")
    ] = tracing.STEP_LINES_PAGE,
) -> tracing.StepLinesView:
    """A step's peer-steps and paid audits."""
    async with work:
        return await lines_of_step(
            job, StepNumber(step), work, api.followed, after=after, limit=limit
        )


@tracing_router.on(routes.GET_WORK)
async def get_work(
    job: JobPath,
    step: StepPath,
    peer: PeerPath,
    api: ApiDep,
    work: WorkDep,
    seq: Annotated[int, Query(ge=0, le=MAX_SEQ, description="of the claim")] = 0,
) -> tracing.WorkTraceView:
    """A peer-step from its WorkClaim to the transactions that paid it, with all Merkle paths."""
    async with work:
        return await trace_work(job, StepNumber(step), peer, seq, work=work, followed=api.followed)
