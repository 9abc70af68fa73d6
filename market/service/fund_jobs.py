"""Drafts go into escrow: the market relays what the poster signed, and pays the gas.

A job is funded when the chain's event says so (`sync_chain`), not when the transaction was sent.
"""

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import FundingRefused, JobState
from market.service.coding import spec_of
from market.service.life import happen
from market.service.ports import Chain, UnitOfWork
from market.service.rows import JobRow, PermitRow

MAX_JOBS_A_ROUND = 50


async def fund_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Relay every draft that is not in escrow yet; returns those that were. Safe to repeat."""
    async with work:
        drafts = await work[JobRow].where(
            state=JobState.DRAFT.value, order="posted_at", limit=MAX_JOBS_A_ROUND
        )
        permits = {row.job: await work[PermitRow].get(row.job) for row in drafts}
    funded = []
    for row in drafts:
        permit = permits[row.job]
        if permit is None:
            continue
        try:
            await chain.open_job(spec_of(row), permit.deadline, permit.signature)
            funded.append(row.job)
        except ContractRefused as refusal:
            if (await chain.job(row.job)).state == "none":
                await _refuse(row.job, refusal.message, now, work)
    return funded


async def _refuse(job: JobId, reason: str, now: UnixMillis, work: UnitOfWork) -> None:
    async with work:
        if row := await work[JobRow].lock(job):
            await happen(row, FundingRefused(f"the escrow refused the budget: {reason}"), now, work)
