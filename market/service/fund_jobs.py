"""Drafts go into escrow: the market relays what the poster signed, and pays the gas.

A job is funded when the chain's event says so (`sync_chain`), not when the transaction was sent.
The event of a job that its poster opened before he posted it came when it had no row, so a draft
that the chain knows already is funded here: none stays that will never be funded, or it would hold
up those behind it.
"""

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import FundingRefused, JobState
from market.service.coding import spec_of
from market.service.coordinators import note_paid
from market.service.life import happen
from market.service.ports import Chain, UnitOfWork
from market.service.rows import BudgetRow, JobRow

MAX_JOBS_A_ROUND = 50


async def fund_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Relay every draft that is not in escrow yet; returns those that were. Safe to repeat."""
    async with work:
        drafts = await work[JobRow].where(
            state=JobState.DRAFT.value, order="posted_at", limit=MAX_JOBS_A_ROUND
        )
    funded = []
    for row in drafts:
        if await _is_known(row.job, now, work):
            continue
        try:
            await chain.open_job(spec_of(row), row.permit_deadline, row.permit)
            funded.append(row.job)
        except ContractRefused as refusal:
            await _judge(row.job, refusal.message, now, work, chain)
    return funded


async def note_opened(row: JobRow, now: UnixMillis, work: UnitOfWork) -> JobRow:
    """The escrow holds a job's budget; in the caller's transaction, which holds its row."""
    await note_paid(row.coordinator, row.job, work)
    return await happen(row, "funded", now, work)


async def _is_known(job: JobId, now: UnixMillis, work: UnitOfWork) -> bool:
    """Whether events that came before the job was posted say that it was opened."""
    async with work:
        row, budget = await work[JobRow].lock(job), await work[BudgetRow].get(job)
        if row is None or budget is None:
            return False
        row = await note_opened(row, now, work)
        if budget.closed_at:
            await happen(row, "closed", now, work)
        return True


async def _judge(job: JobId, refusal: str, now: UnixMillis, work: UnitOfWork, chain: Chain) -> None:
    """What a draft becomes whose permit the chain refused; not if its event is on its way."""
    if (await chain.budget(job)).funded:
        return
    async with work:
        row = await work[JobRow].lock(job)
        if row is not None and await work[BudgetRow].get(job) is None:
            refused = FundingRefused(f"the escrow refused the budget: {refusal}")
            await happen(row, refused, now, work)
