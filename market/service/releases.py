"""What nobody needs any more comes free: limits and stakes of accounts that ended, budgets.

An account's stake and unspent limit are released `tail` after its end, what is free of a closed job
goes back to its poster `tail` after the close. Anyone may do so; the market does it for all. Before
a limit is released, the newest seal is shown (`claims`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.governance.escrow import Budget, end_of
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import JobHeader
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.service.claims import REFUSED_MILLIS, claim_job, unshown_in
from market.service.coding import spec_of
from market.service.due import SOON_MILLIS
from market.service.money import budget_of
from market.service.ports import Chain, UnitOfWork
from market.service.rows import BudgetRow, JobRow, LimitRow

MAX_ACCOUNTS = 100  # in one call
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    """What a job holds that can come free, and from when on."""

    header: JobHeader
    ended: Mapping[Address, UnixSeconds]
    budget: Budget


async def release_job(
    job: JobId, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> UnixMillis | None:
    """Free what is over in a job. Safe to repeat and to interrupt.

    Returns:
        When to look again; None: nothing is held that will come free.
    """
    tail = (await chain.times()).tail
    async with work:
        held = await _held(job, work)
    if held is None:
        return None
    moments = {account: UnixSeconds(at + tail) for account, at in held.ended.items()}
    due = {each: held.ended[each] for each, at in moments.items() if await chain.is_over(at)}
    try:
        if due:
            return await _release(job, due, now, work, chain)
        if held.budget.closed_at and held.budget.free:
            free_from = UnixSeconds(held.budget.closed_at + tail)
            if await chain.is_over(free_from):
                free, funded = BaseUnits(held.budget.free), BaseUnits(held.budget.funded)
                await chain.reclaim(held.header, free, funded)
                return UnixMillis(now + SOON_MILLIS)
            moments[Address(bytes(20))] = free_from
    except ContractRefused as refusal:  # somebody was quicker, and its event is on its way
        log.warning("release of job %s: %s", job.hex(), refusal.message)
        return UnixMillis(now + REFUSED_MILLIS)
    return UnixMillis(max(now, 1000 * min(moments.values())) + 1000) if moments else None


async def _release(
    job: JobId,
    ended: Mapping[Address, UnixSeconds],
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
) -> UnixMillis:
    """Release those whose pay the chain knows; of the others, it is shown first.

    A coordinator could raise the pay of one in each seal, so nobody waits for anybody else.
    """
    again = await claim_job(job, now, work, chain, accounts=ended.keys())
    async with work:
        unshown = await unshown_in(job, work)
    accounts = sorted(ended.keys() - unshown)
    if not accounts and again is not None:
        return again
    for first in range(0, len(accounts), MAX_ACCOUNTS):
        part = accounts[first : first + MAX_ACCOUNTS]
        await chain.release(job, {account: ended[account] for account in part})
    return UnixMillis(now + SOON_MILLIS)


async def _held(job: JobId, work: UnitOfWork) -> _Held | None:
    row, budget = await work[JobRow].get(job), budget_of(await work[BudgetRow].get(job))
    if row is None:
        return None
    ended = {}
    for each in await work[LimitRow].where(job=job):
        at = UnixSeconds(end_of(each.end, budget.closed_at))
        unspent = each.limit - max(each.claimed, each.earned)
        may_return = each.end and not budget.closed_at  # who is released may work there again
        if at and (each.stake or unspent or may_return):
            ended[each.account] = at
    return _Held(spec_of(row).message.header(), ended, budget)
