"""Where an audit begins: a job's sealed steps, whom to look for, and what was ruled."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.typed_names import digits_of
from market.api.context import Api, ApiDep, JobPath, WorkDep, parse_bytes
from market.bodies.settlement import EpochSummary
from market.service.find_job import find_job
from market.service.find_steps import FATES, FoundStep, Wanted, find_steps
from market.service.ports import UnitOfWork
from market.service.rows import DebitRow, EpochRow
from market.service.show_checks import checks_of_job
from market.service.show_jobs import job_view
from market.service.show_slashes import find_convictions
from market.service.show_steps import steps_of
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
        view = await job_view(row, work, api.booked)
        steps, next_after = await _steps(job, wanted, api, work, after)
        debits = await _debits(job, work)
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
        debits=debits,
        convictions=(await find_convictions(work, api.market.chain, job=job)).convictions,
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


async def _debits(job: JobId, work: UnitOfWork) -> list[dict[str, Any]]:
    """What epochs took from the job, with the epochs."""
    rows = await work[DebitRow].where(job=job, order="epoch")
    epochs = {each: await work[EpochRow].get(each) for each in {row.epoch for row in rows}}
    return [
        {"epoch": EpochSummary.of(epoch), "amount": row.amount, "step": row.step, "seal": row.seal}
        for row in rows
        if (epoch := epochs[row.epoch]) is not None
    ]
