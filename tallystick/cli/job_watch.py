"""Following a job until nothing is trained any more: what `job watch` and `submit --wait` do.

What happens comes as events. The newest state is shown a moment after it changed, however many
events led there, so a job that is followed late is not gone through step by step.
"""

import asyncio
from contextlib import aclosing
from datetime import timedelta

from contracts.terms.errors import DeadlineExceeded, Refused
from contracts.terms.ids import JobId
from market.bodies.jobs import JobView
from market.bodies.routes import GET_JOB
from tallystick.cli.job_live import live_line, live_picture, progress_line
from tallystick.cli.options import Job, Market, Timeout, ask_of_job
from tallystick.cli.output import Show, screen, shows
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.watch import DONE_STATES, JobLive, watch

DAY = 86_400
SHOW_SECONDS = 0.2
PATIENCE = timedelta(minutes=2)
"""With a market that does not answer any more."""


@shows(JobView, lines=lambda view: [progress_line(view)])
def watch_command(job: Job, market: Market = None, timeout: Timeout = DAY) -> JobView:
    """Follow a job live until it ends: step, loss, tokens/s, spend against the cap, peers, audits.

    What changes is shown on standard error; the answer is how the job stands at the end. Exit
    codes: 0 it ended, 2 it failed, 7 it goes on after --timeout.

    Example: tallystick job watch JOB --timeout 600
    """
    span = timedelta(seconds=timeout)
    return ask_of_job(market, job, lambda client, wanted: follow(client, wanted, span))


async def follow(client: MarketClient, job: JobId, timeout: timedelta) -> JobView:
    """Show how far a job is until it ends.

    Raises:
        DeadlineExceeded: it did not end within `timeout`.
        Refused: it failed.
        Unavailable: no market answers at first, or later for two minutes.
    """
    view = await client.call(GET_JOB, job=job)  # a wrong name or URL is told at once
    if view.state not in DONE_STATES:
        await _until_done(client, job, timeout)
        view = await retrying(lambda: client.call(GET_JOB, job=job), patience=PATIENCE)
    if view.state == "failed":
        raise Refused(f"the job failed: {view.failure}", job=job)
    return view


async def _until_done(client: MarketClient, job: JobId, timeout: timedelta) -> None:
    live = JobLive(job)
    with screen() as show:
        newest = _Newest(show)
        try:
            async with (
                asyncio.timeout(timeout.total_seconds()),
                aclosing(watch(client, job, patience=PATIENCE)) as states,
            ):
                async for live in states:
                    newest.note(live)
                    if live.is_over:
                        return
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the job is {live.state} after {int(timeout.total_seconds())} s", state=live.state
            ) from error
        finally:
            newest.flush()


class _Newest:
    """Shows the newest of many states, a moment after it came."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._live: JobLive | None = None
        self._later: asyncio.TimerHandle | None = None

    def note(self, live: JobLive) -> None:
        """Show this soon, unless a newer one comes first."""
        self._live = live
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(SHOW_SECONDS, self.flush)

    def flush(self) -> None:
        """Show what has not been shown."""
        if self._later is not None:
            self._later.cancel()
        live, self._live, self._later = self._live, None, None
        if live is not None:
            self._show(live_line(live), live_picture(live))
