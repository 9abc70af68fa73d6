"""What an auditor looks at: each step's seal, batch and coin, and what was ruled of a job."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import ZERO_DIGEST, Digest, JobId
from market.api.context import Api, ApiDep, JobPath, WorkDep
from market.api.routes.checks import checks_view
from market.api.routes.slashes import convictions_of_job
from market.api.schemas import COINS_PAGE
from market.api.views import batch_view, epoch_summary, job_row, job_view
from market.service.ports import UnitOfWork
from market.service.rows import BatchRow, DebitRow, EpochRow
from market.service.show_checks import checks_of_job
from market.service.show_coins import coins_of_job
from market.web.rendering import page

router = APIRouter()

STEPS_PAGE = min(100, COINS_PAGE)


@router.get("/audit/{name}")
async def get_audit_page(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> Response:
    """What there is to audit of a job."""
    async with work:
        row = await job_row(job, work)
        view = await job_view(row, work)
        found = await checks_of_job(job, work, api.followed)
        steps = await _steps(job, after, work)
        debits = await _debits(job, work)
    return page(
        "audit.html",
        here="audit",
        now=api.market.clock(),
        name=row.name,
        job=view,
        steps=steps,
        next_after=steps[-1]["step"] if len(steps) == STEPS_PAGE else None,
        debits=debits,
        zero=ZERO_DIGEST,
        **await _rulings(job, api, work),
        checks=await asyncio.to_thread(checks_view, found),
    )


async def _steps(job: JobId, after: int, work: UnitOfWork) -> list[dict[str, Any]]:
    """Anchored steps with their seals, as their batches hold them."""
    steps = await coins_of_job(job, work, after=after, limit=STEPS_PAGE)
    seals: dict[tuple[Digest, int], Digest] = {}
    for root in {each.root for each in steps}:
        batch = await work[BatchRow].get(root)
        entries = () if batch is None else (await batch_view(batch, work)).entries
        seals |= {(root, each.step): each.seal for each in entries if each.job == job}
    return [
        {
            "step": each.step,
            "seal": seals[each.root, each.step],
            "root": each.root,
            "block": each.block,
            "coin": each.coin,
        }
        for each in steps
    ]


async def _debits(job: JobId, work: UnitOfWork) -> list[dict[str, Any]]:
    """What epochs took from the job, with the epochs."""
    rows = await work[DebitRow].where(job=job, order="epoch")
    epochs = {each: await work[EpochRow].get(each) for each in {row.epoch for row in rows}}
    return [
        {"epoch": epoch_summary(epoch), "amount": row.amount, "step": row.step, "seal": row.seal}
        for row in rows
        if (epoch := epochs[row.epoch]) is not None
    ]


async def _rulings(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    return {"convictions": (await convictions_of_job(job, work, api.market.chain)).convictions}
