"""What was sealed, ruled and paid: a job's audit, its steps, and one peer-step's evidence.

A peer-step's page shows one chain from its WorkClaim to a transaction; `static/trace.js` derives
it again from what programs get. Without scripts the page says that nothing was checked here.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StepNumber
from contracts.terms.typed_names import digits_of
from contracts.terms.work import MAX_SEQ
from market.api.context import Api, ApiDep, JobPath, PeerPath, WorkDep, parse_bytes
from market.api.routes.tracing import StepPath
from market.bodies.base import API_PREFIX
from market.bodies.earnings import EarningView
from market.bodies.offers import ChecksView, PeerChecksView
from market.bodies.tracing import STEP_LINES_PAGE, DistanceView, StepView, WorkTraceView
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.find_steps import FATES, FoundStep, Wanted, find_steps
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_checks import checks_of_job
from market.service.show_earnings import earning_of
from market.service.show_jobs import job_view
from market.service.show_slashes import find_convictions
from market.service.show_steps import lines_of_step, steps_of
from market.service.trace_work import trace_work
from market.web.rendering import page

router = APIRouter()

STEPS_PAGE = 100
HEX_OF_PEER = 64


@router.get("/audit/{job}")
async def get_audit_page(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    peer: Annotated[str, Query(max_length=80)] = "",
    verdict: Annotated[str, Query(max_length=16)] = "",
) -> Response:
    """What there is to audit of a job."""
    wanted = _wanted(peer.strip(), verdict)
    async with work:
        row = await find_job(job, work)
        view = await job_view(row, work)
        steps, next_after = await _steps(job, wanted, api, work, after)
    return page(
        "audit.html",
        here="audit",
        now=api.market.clock(),
        name=row.name,
        job=view,
        steps=steps,
        next_after=next_after,
        after=after,
        peer=peer.strip(),
        verdict=verdict,
        fates=FATES,
        zero=ZERO_DIGEST,
        is_search=wanted != Wanted(),
        convictions=(await find_convictions(work, job=job)).convictions,
        checks=await checks_of_job(job, work, api.followed),
    )


def _wanted(peer: str, verdict: str) -> Wanted:
    """What a reader looks for.

    Raises:
        Malformed: neither a peer nor an account, or no such verdict.
    """
    fate = next((each for each in FATES if each == verdict), None)
    if verdict and fate is None:
        raise Malformed(f"verdict: one of {', '.join(FATES)}")
    length = 32 if len(digits_of(peer)) == HEX_OF_PEER else 20
    doer = parse_bytes(peer, length) if peer else None
    return Wanted(doer, fate)


async def _steps(
    job: JobId, wanted: Wanted, api: Api, work: UnitOfWork, after: int
) -> tuple[list[FoundStep], int | None]:
    """A page of steps, and where the next one begins."""
    if wanted == Wanted():
        sealed = await steps_of(job, work, api.followed, after=after, limit=STEPS_PAGE)
        steps = [FoundStep(each) for each in sealed.steps]
        return steps, steps[-1].step.step if len(steps) == STEPS_PAGE else None
    return await find_steps(job, wanted, work, api.followed, after=after, limit=STEPS_PAGE)


LINES_PAGE = min(200, STEP_LINES_PAGE)

Link: TypeAlias = Literal["verdict", "pay", "claim"]
"""A part of the evidence, which may be what the money waits at."""

_WAITS_AT: dict[str, Link] = {
    "window": "pay",
    "draws": "pay",
    "audit": "verdict",
    "report": "pay",
    "verdict": "verdict",
    "seal": "pay",
    "claim": "claim",
    "grant": "claim",
    "ended": "claim",
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
    seq: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
) -> Response:
    """A peer-step from its WorkClaim to the transactions that paid it."""
    async with work:
        row = await find_job(job, work)
        trace = await trace_work(job, StepNumber(step), peer, seq, work=work, followed=api.followed)
        values = await _around(row, trace, api, work)
    checks = await checks_of_job(job, work, api.followed)
    source = f"{API_PREFIX}/jobs/{job.hex()}/steps"
    return page(
        "audit_work.html",
        here="audit",
        now=api.market.clock(),
        name=row.name,
        trace=trace,
        steps_source=source,
        source=f"{source}/{step}/work/{peer.hex()}?seq={seq}",
        zero=ZERO_DIGEST,
        farthest=farthest,
        fraction=fraction,
        accounts={each.peer: each.account for each in checks.peers},
        odds=odds_of(checks, peer),
        **values,
    )


async def _around(row: JobRow, trace: WorkTraceView, api: Api, work: UnitOfWork) -> dict[str, Any]:
    """The line of pay with its reason, and the seals that a trace leads through."""
    job = row.job
    line = await earning_of(job, trace.work_claim.claim, work, api.followed)
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
    return max(known, key=lambda each: each.distance / each.allowed, default=None)


def fraction(number: Digest) -> float:
    """A draw's number as people compare it with a chance."""
    return int.from_bytes(number, "big") / 2**256
