"""Following a job until nothing is trained any more: what `job watch` and `submit --wait` do.

The market is asked again and again how the job stands; that reads as a picture on a terminal, as a
line elsewhere.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from contracts.terms.errors import DeadlineExceeded, Refused
from contracts.terms.ids import JobId
from contracts.terms.messages import MILLION
from market.bodies.jobs import JobView
from market.bodies.routes import GET_JOB
from tallystick.cli.job_views import job_table
from tallystick.cli.options import Job, Market, Timeout, ask_of_job
from tallystick.cli.output import Show, notice, screen, shows
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.curves import points_of
from tallystick.sdk.parts import unpublished_lines
from tallystick.sdk.watch import DONE_STATES
from tallystick.watch.run_folder import NO_TENSORBOARD, RunFolder

# -------------------------------------------------------------------- how a job that goes on reads

BAR_WIDTH = 30
WORKING = ("accepted", "active")
PACE_STEPS = 20
"""Steps whose pace tells when the job will be done."""
MOST_SECONDS = 10**9


def live_line(view: JobView) -> str:
    """State, step, loss, speed, peers and money in one line, with the time left."""
    parts = [f"{view.outcome:8} step {_steps(view)}", *_speed(view)]
    if peers := sum(lease.state in WORKING for lease in view.leases):
        parts.append(f"{peers} peers")
    parts.append(f"{_tokens(view.earned)} of {_tokens(int(view.spec['budget']))} tokens")
    if (left := seconds_left(view)) is not None:
        parts.append(f"{timedelta(seconds=left)} left")
    parts += [view.failure] if view.failure else []
    parts += unpublished_lines(view.unpublished)
    return "  ".join(parts)


def live_picture(view: JobView) -> RenderableType:
    """The same as a bar, above all that `job get` tells."""
    left, bar = seconds_left(view), Table.grid(padding=(0, 1))
    bar.add_row(
        view.outcome,
        ProgressBar(
            total=view.progress.steps,
            completed=view.progress.trained,
            width=BAR_WIDTH,
        ),
        f"step {_steps(view)}",
        "" if left is None else f"{timedelta(seconds=left)} left",
    )
    return Group(bar, "  ".join(_speed(view)), job_table(view))


def seconds_left(view: JobView) -> int | None:
    """Until the last step at the present pace; None while there is none."""
    recent = view.reports[-PACE_STEPS:]
    if len(recent) < 2 or view.state in DONE_STATES:
        return None
    (first, begun), (last, ended) = ((each.step, each.at) for each in (recent[0], recent[-1]))
    left = max(0, view.progress.steps - view.progress.trained)
    found = left * (ended - begun) // (1000 * (last - first))
    return min(max(0, found), MOST_SECONDS)  # a coordinator says when


def _steps(view: JobView) -> str:
    return f"{view.progress.trained}/{view.progress.steps}"


def _speed(view: JobView) -> Iterator[str]:
    if view.progress.loss_millionths is not None:
        yield f"loss {view.progress.loss_millionths / MILLION:.4f}"
    if view.progress.tokens_per_second is not None:
        yield f"{view.progress.tokens_per_second} tokens/s"


def _tokens(amount: int) -> str:
    """To a thousandth, as a line that changes has no room for more."""
    return f"{amount / 10**6:.3f}"


# ------------------------------------------------------------------------------------ following it

DAY = 86_400
LOOK_SECONDS = 1.0
LOOK_SHARE = 10
"""A look that takes long, of a long job, is followed by a pause so many times as long."""
FEED_SECONDS = 10.0
"""In which a coordinator's last report reaches its market."""
PATIENCE = timedelta(minutes=2)
"""With a market that does not answer any more."""


@shows(JobView, lines=lambda view: [job_table(view)])
def watch_command(
    job: Job,
    market: Market = None,
    timeout: Timeout = DAY,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Folder for metrics.jsonl and TensorBoard.", metavar="FOLDER"),
    ] = None,
) -> JobView:
    """Follow a job live until it ends: step, loss, tokens/s, spend against the cap, peers.

    What changes is shown on standard error; the answer is how the job stands at the end. With --to
    each step is also written to FOLDER as it comes; called again, it goes on where it was. Exit
    codes: 0 it ended, 2 it failed, 7 it goes on after --timeout.

    Example: tallystick job watch JOB --to run
    """
    span = timedelta(seconds=timeout)

    async def run(client: MarketClient, wanted: JobId) -> JobView:
        if to is None:
            return await follow(client, wanted, span)
        with closing(RunFolder(to, wanted)) as folder:
            if not folder.has_events:
                notice(NO_TENSORBOARD)
            return await follow(client, wanted, span, Writing(client, folder))

    return ask_of_job(market, job, run)


class Writing:
    """Writes the steps of a job into a folder."""

    def __init__(self, client: MarketClient, folder: RunFolder) -> None:
        self._client, self._folder = client, folder

    async def write(self, view: JobView) -> None:
        """Write what `view` has that is new."""
        self._folder.add(await points_of(self._client, view, after=self._folder.final))

    async def write_end(self, view: JobView) -> None:
        """Wait for the last loss on validation rows, for which its coordinator waits as long."""
        grace = view.spec["rules"]["lease_grace"] / 1000 + FEED_SECONDS
        ends = min(time.time(), view.reports[-1].at / 1000) + grace if view.reports else 0.0
        while view.reports and view.reports[-1].validation_millionths is None:
            if time.time() >= ends:
                return
            await asyncio.sleep(LOOK_SECONDS)
            view = await self._client.call(GET_JOB, job=view.job)
            await self.write(view)


async def follow(
    client: MarketClient, job: JobId, timeout: timedelta, writing: Writing | None = None
) -> JobView:
    """Show how far a job is until it ends.

    Raises:
        DeadlineExceeded: it did not end within `timeout`.
        Refused: it failed.
        Unavailable: no market answers at first, or later for two minutes.
    """
    view = await client.call(GET_JOB, job=job)  # a wrong name or URL is told at once
    if writing is not None:
        await writing.write(view)
    if view.state not in DONE_STATES:
        with screen() as show:
            view = await _until_done(client, job, timeout, show, writing)
    if view.state == "failed":
        raise Refused(f"the job failed: {view.failure}", job=job)
    if writing is not None:
        await writing.write_end(view)
    return view


async def _until_done(
    client: MarketClient, job: JobId, timeout: timedelta, show: Show, writing: Writing | None
) -> JobView:
    async def look() -> JobView:
        view = await client.call(GET_JOB, job=job)
        show(live_line(view), live_picture(view))
        if writing is not None:
            await writing.write(view)
        return view

    ends = time.monotonic() + timeout.total_seconds()
    while True:
        began = time.monotonic()
        view = await retrying(look, patience=PATIENCE)
        if view.state in DONE_STATES:
            return view
        now = time.monotonic()
        if now >= ends:
            waited = int(timeout.total_seconds())
            raise DeadlineExceeded(f"the job is {view.state} after {waited} s", state=view.state)
        await asyncio.sleep(min(max(LOOK_SECONDS, LOOK_SHARE * (now - began)), ends - now))
