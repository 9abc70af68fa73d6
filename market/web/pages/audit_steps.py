"""What does a seal hold, and how does one peer-step lead from its GradCommit to a transaction?

The page of a peer-step shows one chain of evidence; `static/trace.js` derives it again from what
programs get. Without scripts it says that nothing was checked here.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import NotFound
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StepNumber
from market.api.context import Api, ApiDep, JobPath, PeerPath, WorkDep
from market.api.routes.earnings import period_of
from market.api.routes.tracing import StepPath
from market.bodies.auditing import ChecksView, PeerChecksView
from market.bodies.base import API_PREFIX
from market.bodies.earnings import EarningView
from market.bodies.tracing import STEP_LINES_PAGE, DistanceView, StepView, WorkTraceView
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_checks import checks_of_job
from market.service.show_earnings import Period, earning_of
from market.service.show_steps import lines_of_step, steps_of
from market.service.trace_work import trace_work
from market.web.rendering import page

router = APIRouter()

LINES_PAGE = min(200, STEP_LINES_PAGE)

Link: TypeAlias = Literal["verdict", "pay", "epoch", "claim"]
"""A part of the evidence, which may be what the money waits at."""

_WAITS_AT: dict[str, Link] = {
    "window": "pay",
    "draws": "pay",
    "audit": "verdict",
    "report": "pay",
    "verdict": "verdict",
    "close": "pay",
    "anchor": "pay",
    "cap": "epoch",
    "epoch": "epoch",
    "proposal": "epoch",
    "challenge": "epoch",
    "finalization": "epoch",
    "claim": "claim",
}


@router.get("/audit/{job}/steps/{step}")
async def get_step_page(
    job: JobPath,
    step: StepPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40)] = 0,
) -> Response:
    """A sealed step and all that its seal pays for."""
    async with work:
        row = await find_job(job, work)
        found = await lines_of_step(
            job, StepNumber(step), work, api.followed, after=after, limit=LINES_PAGE
        )
    return page(
        "audit_step.html",
        here="audit",
        now=api.market.clock(),
        name=row.name,
        job=job,
        newest=row.step,
        zero=ZERO_DIGEST,
        step=found.step,
        lines=found.lines,
        num_lines=found.num_lines,
        next_after=found.next,
        source=f"{API_PREFIX}/jobs/{job.hex()}/steps/{step}",
    )


@router.get("/audit/{job}/steps/{step}/work/{peer}")
async def get_work_page(
    job: JobPath,
    step: StepPath,
    peer: PeerPath,
    api: ApiDep,
    work: WorkDep,
    number: Annotated[int, Query(alias="round", ge=0, le=2**40)] = 0,
) -> Response:
    """A peer-step from its GradCommit to the transactions that paid it."""
    period = await period_of(api)
    async with work:
        row = await find_job(job, work)
        trace = await trace_work(
            job, StepNumber(step), peer, number, work=work, followed=api.followed
        )
        values = await _around(row, trace, api, work, period)
    checks = await checks_of_job(job, work, api.followed)
    source = f"{API_PREFIX}/jobs/{job.hex()}/steps"
    return page(
        "audit_work.html",
        here="audit",
        now=api.market.clock(),
        name=row.name,
        trace=trace,
        steps_source=source,
        source=f"{source}/{step}/work/{peer.hex()}?round={number}",
        zero=ZERO_DIGEST,
        farthest=farthest,
        fraction=fraction,
        accounts={each.peer: each.account for each in checks.peers},
        odds=odds_of(checks, peer),
        **values,
    )


async def _around(
    row: JobRow, trace: WorkTraceView, api: Api, work: UnitOfWork, period: Period
) -> dict[str, Any]:
    """The line of pay with its reason, and the seals that a trace leads through."""
    job, name, now = row.job, trace.commit.grad_commit, api.market.clock()
    line = await earning_of(job, name, work, api.followed, now=now, period=period)
    audit = spec_of(row).message.rules.audit
    return {
        "line": line,
        "waits_at": waits_at(line),
        "sealed": await _sealed(job, trace.sealed.step, api, work),
        "vesting": None if trace.pay is None else await _sealed(job, trace.pay.step, api, work),
        "deadline": None if audit is None else audit.deadline,
    }


async def _sealed(job: JobId, step: int, api: Api, work: UnitOfWork) -> StepView:
    found = await steps_of(job, work, api.followed, after=step - 1, limit=1)
    if not found.steps:
        raise NotFound("no such step is sealed", step=step)
    return found.steps[0]


def waits_at(line: EarningView) -> Link | None:
    """The part of the evidence that the money waits at; None where it does not, or is lost."""
    return None if line.waits_for is None else _WAITS_AT.get(line.waits_for.code)


def odds_of(checks: ChecksView, peer: PeerId) -> PeerChecksView | None:
    """What checking has shown of a peer; None while nobody knows anything."""
    return next((each for each in checks.peers if each.peer == peer), None)


def farthest(distances: Sequence[DistanceView]) -> DistanceView | None:
    """The distance that is largest against what is allowed; None where nothing was compared."""
    known = [each for each in distances if each.allowed]
    return max(known, key=lambda each: each.distance / (each.allowed or 1), default=None)


def fraction(number: Digest) -> float:
    """A draw's number as people compare it with a chance."""
    return int.from_bytes(number, "big") / 2**256
