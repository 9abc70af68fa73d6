"""The worker of a queue goes round: noted every few seconds, so that one that stopped is seen."""

from datetime import timedelta

from contracts.terms.moments import UnixMillis
from market.service.ports import UnitOfWork
from market.service.rows import BeatRow

NOTED_EVERY = timedelta(seconds=5)


async def note_beat(queue: str, now: UnixMillis, work: UnitOfWork) -> UnixMillis:
    """Say that the worker of `queue` is at work; returns when that was."""
    async with work:
        await work[BeatRow].put(BeatRow(queue, now))
    return now
