"""What happens because time passes: leases lapse, deadlines pass, a silent close becomes one."""

from contracts.terms.moments import UnixMillis
from market.domain.jobs import CloseRequested, DeadlinePassed, JobState, LeaseLapsed
from market.service.leases import BLOCK_MILLIS, end
from market.service.life import happen
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow

_ALIVE = (JobState.DRAFT, JobState.FUNDED, JobState.MATCHED, JobState.RUNNING)


async def lapse_leases(now: UnixMillis, work: UnitOfWork) -> int:
    """End leases that were not accepted in time; returns how many."""
    async with work:
        late = [
            row
            for row in await work[LeaseRow].where(state="reserved", lock=True)
            if row.accept_ends <= now
        ]
        for row in late:
            await end(row, "lapsed", work, blocked_until=now + BLOCK_MILLIS)
    return len(late)


async def lapse_lease(row: LeaseRow, now: UnixMillis, work: UnitOfWork) -> None:
    """End a lease whose stake the chain will not reserve; its job looks for another."""
    job = await work[JobRow].lock(row.job)
    await end(row, "lapsed", work, blocked_until=now + BLOCK_MILLIS)
    if job is not None:
        await happen(job, LeaseLapsed(), now, work)


async def pass_deadlines(now: UnixMillis, work: UnitOfWork) -> int:
    """Fail jobs whose deadline is over, and note closes whose response window is; returns both."""
    changed = 0
    async with work:
        rows = await work[JobRow].where(state=tuple(state.value for state in _ALIVE), lock=True)
        for row in rows:
            if row.ends_at is not None and row.ends_at * 1000 <= now:
                changed += (await happen(row, CloseRequested(), now, work)) != row
            elif row.deadline * 1000 <= now:
                changed += (await happen(row, DeadlinePassed(), now, work)) != row
    return changed
