"""Which jobs may have something to do about their money, and from when on.

A row says that a task may have something to do for a job, not before a moment. Who starts the task
moves that moment on, so that one which is lost with its worker, or with Redis, is found again; the
task looks for itself what there is to do, and says when to look next. Nothing here is the truth:
a row too many costs a look, and events of the chain, orders and seals bring the rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.service.ports import UnitOfWork
from market.service.rows import DueRow

Task: TypeAlias = Literal["grant", "claim", "release"]
"""Relay what parties have signed; pay what vested; give back what nobody needs any more."""

AGAIN_MILLIS = 10_000
"""After which a task that was started and not heard of is started again."""
SOON_MILLIS = 3_000
"""After which a task looks whether the chain's events say what it sent."""
AT_ONCE = 200


async def note_due(job: JobId, task: Task, at: int, work: UnitOfWork) -> None:
    """Have a task look at a job at this moment, or before; the caller is in a transaction."""
    held = await work[DueRow].lock(job, task)
    if held is None or at < held.at:
        await work[DueRow].put(DueRow(job, task, UnixMillis(at)))


async def start_due(
    now: UnixMillis, work: UnitOfWork, start: Callable[[str, JobId], object]
) -> int:
    """Start the tasks whose time has come; returns how many. Safe to run twice at once."""
    async with work:
        # The oldest first: or who keeps some due all the time keeps out all others.
        oldest = await work[DueRow].where(order="at", limit=AT_ONCE, lock=True)
        due = [row for row in oldest if row.at <= now]
        await work[DueRow].put_all([replace(row, at=UnixMillis(now + AGAIN_MILLIS)) for row in due])
    for row in due:
        start(row.task, row.job)
    return len(due)


async def begin_due(job: JobId, task: Task, now: UnixMillis, work: UnitOfWork) -> DueRow | None:
    """What a task that begins has to hand to `note_done`: whatever is noted from now on differs."""
    async with work:
        held = await work[DueRow].lock(job, task)
        if held is not None:
            held = replace(held, at=UnixMillis(now + AGAIN_MILLIS))
            await work[DueRow].put(held)
        return held


async def note_done(begun: DueRow | None, again_at: UnixMillis | None, work: UnitOfWork) -> None:
    """A task that began with this row has looked; None: there is nothing more to do.

    What was noted meanwhile stays.
    """
    if begun is None:
        return
    async with work:
        held = await work[DueRow].lock(begun.job, begun.task)
        if held is None or held.at < begun.at:
            return
        if again_at is None:
            await work[DueRow].remove(begun.job, begun.task)
        else:
            await work[DueRow].put(replace(held, at=again_at))
