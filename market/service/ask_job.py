"""A poster pauses, resumes or cancels its job, and asks what became of that.

What is wanted is a number and a word in the job's row; whoever acts on a job looks there: clearing
rounds, hosts when they claim, and through its host the coordinator, which says what it follows.
The caller has found out who asks: by a wallet's signature, or in another way.
"""

from dataclasses import replace

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Forbidden
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import JobAction, OperationResult, OperationView
from market.domain.jobs import JobState, Standing, Wanted, operation_outcome, wanted_after
from market.domain.offers import check_moment
from market.service.find_job import find_job, need
from market.service.life import happen
from market.service.ports import UnitOfWork
from market.service.rows import HostedJobRow, JobRow, OperationRow


async def ask_job(
    job: JobId, action: JobAction, *, by: Address, at: UnixMillis, now: UnixMillis, work: UnitOfWork
) -> OperationView:
    """Note what a poster wants of its job from now on.

    Args:
        job: Which.
        action: What is asked.
        by: Who asks, as the caller knows.
        at: When it was asked, by the asker's clock; later than whatever was asked before.
        now: The market's clock.
        work: Holds the rows.

    Raises:
        NotFound: no such job.
        Forbidden: it is another one's.
        Expired: replayed, or a clock that is off.
        Conflict: see `market.domain.jobs.wanted_after`.
    """
    async with work:
        row = await find_job(job, work, lock=True)
        if row.poster != by:
            raise Forbidden("only its poster pauses, resumes or cancels a job", account=by)
        check_moment(at, now=now, previous=row.wished_at)
        wanted = wanted_after(JobState(row.state), Wanted(row.wanted), action)
        if wanted != row.wanted:
            await _supersede(row, now, work)
        row = await _with_wish(row, wanted, at, now, work)
        asked = OperationRow(_name(job, action, at), job, action, row.wish, now)
        await work[OperationRow].add(asked)
        return await _operation(asked, row, now, work)


async def find_operation(operation: Digest, now: UnixMillis, work: UnitOfWork) -> OperationView:
    """What became of an operation.

    Raises:
        NotFound: there is none of this name.
    """
    async with work:
        asked = need(await work[OperationRow].get(operation), "operation", operation=operation)
        return await _operation(asked, await find_job(asked.job, work), now, work)


def _name(job: JobId, action: JobAction, at: UnixMillis) -> Digest:
    return digest("operation", encode([job, action, at]))


async def _with_wish(
    row: JobRow, wanted: Wanted, at: UnixMillis, now: UnixMillis, work: UnitOfWork
) -> JobRow:
    is_news = wanted != row.wanted
    row = replace(row, wanted=wanted.value, wish=row.wish + is_news, wished_at=at)
    await work[JobRow].put(row)
    if is_news and wanted == Wanted.CANCELLED:
        return await happen(row, "cancelled", now, work)
    return row


async def _supersede(row: JobRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Whatever still waited for the wish before will not happen any more."""
    for asked in await work[OperationRow].where(job=row.job, wish=row.wish):
        if (await _operation(asked, row, now, work)).state == "pending":
            await work[OperationRow].put(replace(asked, superseded=True))


async def _operation(
    asked: OperationRow, row: JobRow, now: UnixMillis, work: UnitOfWork
) -> OperationView:
    hosted = await work[HostedJobRow].get(row.job)
    standing = Standing(
        state=JobState(row.state),
        wish=row.wish,
        heeded=row.heeded,
        is_hosted=hosted is not None and hosted.until > now,
    )
    found = operation_outcome(asked.action, asked.wish, standing, superseded=asked.superseded)
    result = OperationResult.of(row, job_state=row.state)
    return OperationView.of(
        asked,
        state=found.state,
        waits_for=found.waits_for,
        result=result if found.state == "done" else None,
        error=found.error,
    )
