"""Drafts go into escrow: the market relays what the poster signed, and pays the gas.

A job is funded when the chain's events say so (`sync_chain`), not when the transaction was sent.
Events of a job that its poster opened before he posted it came when it had no row, so a draft that
the chain knows already is judged here: none stays that will never be funded, or it would hold up
those behind it.
"""

from dataclasses import replace

from contracts.terms.amounts import format_tokens
from contracts.terms.errors import ContractRefused
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.domain import ledger
from market.domain.jobs import Funded, FundingRefused, JobState, Wanted
from market.service.booking import balances_of
from market.service.coding import spec_of
from market.service.coordinators import note_paid
from market.service.life import happen
from market.service.ports import Chain, JobNow, UnitOfWork
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
            await _judge(row.job, refusal.message, now, work, chain)
    return funded


async def note_deposits(row: JobRow, now: UnixMillis, work: UnitOfWork) -> JobRow:
    """A job is funded when its confirmed deposits reach its budget; in the caller's transaction."""
    if row.settled:  # it had failed, and nothing was in escrow
        row = replace(row, settled=False)
        await work[JobRow].put(row)
    account = ledger.escrow(row.job)
    held = (await balances_of([account], work)).get(account, 0)
    if held < row.budget:
        return row
    await note_paid(row.coordinator, row.job, work)
    return await happen(row, Funded(cancelled=row.wanted == Wanted.CANCELLED), now, work)


async def _judge(job: JobId, refusal: str, now: UnixMillis, work: UnitOfWork, chain: Chain) -> None:
    """What a draft becomes whose permit the chain refused."""
    found = await chain.job(job)
    async with work:
        row = await work[JobRow].lock(job)
        if row is None:
            return
        if found.state == "open" and found.deposited >= row.budget:
            await note_deposits(row, now, work)
            return
        await happen(row, FundingRefused(_why(row, found, refusal)), now, work)


def _why(row: JobRow, found: JobNow, refusal: str) -> str:
    match found.state:
        case "none":
            return f"the escrow refused the budget: {refusal}"
        case "open":
            held, budget = format_tokens(found.deposited), format_tokens(row.budget)
            return f"its poster opened it with {held} of {budget} tokens"
        case state:
            return f"its poster opened it, and it is {state}"
