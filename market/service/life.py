"""How a job's row moves: one event into the state machine, its effects into rows.

The caller holds the job's row (`lock`) and is inside a transaction.
"""

from dataclasses import replace

from contracts.terms.moments import UnixMillis
from market.bodies.events import JobChangedEvent, StateEvent
from market.domain.jobs import HAS_ENDED, Event, JobState, NoteFailure, advance
from market.service.due import note_due
from market.service.feeds import event_of, tell_job, tell_market
from market.service.leases import end_leases
from market.service.ports import UnitOfWork
from market.service.rows import JobRow

FOR_HOSTS = "host"
"""What hosts that wait for a job are woken by."""


async def happen(row: JobRow, event: Event, now: UnixMillis, work: UnitOfWork) -> JobRow:
    """Store and return the row after `event`; an event that does not fit changes nothing."""
    state, effects = advance(JobState(row.state), event)
    after = replace(row, state=state.value)
    for effect in effects:
        match effect:
            case NoteFailure(reason):
                after = replace(after, failure=reason)
            case "end_leases":
                await end_leases(row.job, now, work)
            case "ask_for_host":
                work.wake(FOR_HOSTS)
    if JobState(state) in HAS_ENDED and row.ended_at is None:
        after = replace(after, ended_at=now if row.state != JobState.DRAFT else UnixMillis(0))
    if after != row:
        await work[JobRow].put(after)
        tell_of_state(after, now, work)
        if JobState(after.state) in HAS_ENDED:
            await note_due(row.job, "claim", now, work)
    return after


def tell_of_state(row: JobRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Tell who watches the job, or the market, in which state it is now."""
    tell_job(row.job, event_of(StateEvent, row, at=now), work)
    tell_market(event_of(JobChangedEvent, row, at=now), work)
