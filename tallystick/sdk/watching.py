"""A job as it goes: everything that follows one reads `watched`, however the news come.

Now it asks the market again and again; a stream of events can take its place here.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from contracts.terms.errors import DeadlineExceeded
from contracts.terms.ids import JobId
from market.api.schemas import JobView
from tallystick.sdk.client import MarketClient, retrying

FINAL_STATES = ("finished", "closed", "refunded", "failed")
_EVERY = timedelta(seconds=0.5)
_PATIENCE = timedelta(minutes=2)  # with a market that does not answer


async def watched(
    client: MarketClient, job: JobId, *, timeout: timedelta, every: timedelta = _EVERY
) -> AsyncIterator[JobView]:
    """The job now, then whenever its state or step has changed; the last one is final.

    Raises:
        DeadlineExceeded: it did not end within `timeout`.
        Unavailable: the market does not answer at first, or later for two minutes.
    """
    loop = asyncio.get_running_loop()
    ends, seen = loop.time() + timeout.total_seconds(), ("", -1)
    view = await client.job(job)
    while True:
        if (now := (view.state, view.progress.step)) != seen:
            seen = now
            yield view
        if view.state in FINAL_STATES:
            return
        if loop.time() > ends:
            seconds = int(timeout.total_seconds())
            raise DeadlineExceeded(f"the job is {view.state} after {seconds} s", state=view.state)
        await asyncio.sleep(every.total_seconds())
        view = await retrying(lambda: client.job(job), patience=_PATIENCE)
