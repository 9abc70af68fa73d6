"""Following a job until nothing is trained any more: what `job watch` and `submit --wait` do.

What happens comes as events. The newest state is shown a moment after it changed, however many
events led there, so a job that is followed late is not gone through step by step. It reads as a
picture on a terminal, as a line elsewhere.
"""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import DeadlineExceeded, Refused
from contracts.terms.ids import JobId
from contracts.terms.messages import MILLION
from contracts.terms.printable import printable
from market.bodies.jobs import JobView
from market.bodies.routes import GET_JOB
from market.domain.jobs import JobState, Wanted, outcome, trained
from tallystick.cli.job_views import job_table
from tallystick.cli.options import Job, Market, Timeout, ask_of_job
from tallystick.cli.output import Show, facts, screen, short, shows
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.watch import DONE_STATES, AuditsLive, JobLive, watch

# -------------------------------------------------------------------- how a job that goes on reads

BAR_WIDTH = 30
WORKING = ("accepted", "active")


def live_line(live: JobLive) -> str:
    """State, step, loss and money in one line, with what checking has shown and the time left."""
    line = f"{_outcome(live):8} step {_steps(live)}"
    if live.loss_millionths is not None:
        line += f"  loss {live.loss_millionths / MILLION:.4f}"
    if live.tokens_per_second is not None:
        line += f"  {live.tokens_per_second} tokens/s"
    if live.num_members:
        line += f"  {live.num_members} peers"
    line += f"  {_of(live.earned, _cap(live))}"
    audits = live.audits
    if audits.drawn:
        line += f"  {audits.matched} of {audits.drawn} audits match"
    if live.seconds_left is not None:
        line += f"  {_span(live.seconds_left)} left"
    return line + "".join(f"  {each}" for each in _unpublished(live))


def live_picture(live: JobLive) -> RenderableType:
    """Everything that a person follows: progress, loss, speed, spend, peers, audits."""
    name = "" if live.posted is None else printable(live.posted.name)
    return Group(f"job {short(live.job)}  {name}", _bar(live), facts("", dict(_rows(live))))


def _bar(live: JobLive) -> Table:
    steps = 1 if live.posted is None else live.posted.steps
    found = Table.grid(padding=(0, 1))
    left = "" if live.seconds_left is None else f"{_span(live.seconds_left)} left"
    bar = ProgressBar(total=steps, completed=trained(live.step, steps), width=BAR_WIDTH)
    found.add_row(_outcome(live), bar, f"step {_steps(live)}", left)
    return found


def _rows(live: JobLive) -> Iterator[tuple[str, str]]:
    if live.failure:
        yield "failure", live.failure
    if live.loss_millionths is not None:
        yield "loss", f"{live.loss_millionths / MILLION:.4f} nats a token"
    if live.validation_millionths is not None:
        yield "validation", f"{live.validation_millionths / MILLION:.4f}"
    if live.tokens_per_second is not None:
        yield "speed", f"{live.tokens_per_second} tokens/s"
    yield "spent", f"{_of(live.earned, _cap(live))}, {_tokens(live.claimed)} claimed"
    yield "committed", f"{_tokens(live.committed)}, of {_tokens(live.funded)} in escrow"
    yield "peers", _peers(live)
    for each in live.not_matched:
        yield (
            f"not matched: {each.constraint}",
            f"{each.offers} offers; fits: {each.would_fit}",
        )
    yield "audits", _audits(live)
    if live.anchored_step:
        yield "on chain", f"seals to step {live.anchored_step}, beacons to {live.beacon_step}"
    if live.checkpoints:
        steps = (each.step for each in live.checkpoints.values())
        yield "checkpoint", f"step {min(steps)}, {len(live.checkpoints)} stages"
    for line in _unpublished(live):
        yield "weights", line


def _unpublished(live: JobLive) -> Iterator[str]:
    for stage, reason in sorted(live.unpublished.items()):
        yield f"weights of stage {stage} were not published: {reason}"


def _peers(live: JobLive) -> str:
    leases = sum(lease.state in WORKING for lease in live.leases.values())
    gone = sum(peer.is_suspended for peer in live.peers.values())
    found = f"{live.num_members} at work, {leases} leases"
    return f"{found}, {gone} suspended" if gone else found


def _audits(live: JobLive) -> str:
    if live.posted is not None and live.posted.audit_budget is None:
        return "off: nobody checks"
    audits = live.audits
    found = f"{audits.drawn} drawn: {audits.matched} match, {audits.mismatched} do not, "
    found += f"{len(audits.open)} open"
    return found + "".join(_trouble(audits))


def _trouble(audits: AuditsLive) -> Iterator[str]:
    for number, what in (
        (audits.missing, "without data"),
        (audits.unrepeated, "unrepeated"),
        (audits.missed, "reports too late"),
        (len(audits.convicted), "convicted"),
        (len(audits.slashes), "slashes"),
    ):
        if number:
            yield f", {number} {what}"


def _steps(live: JobLive) -> str:
    if live.posted is None:
        return f"{live.step}/?"
    return f"{trained(live.step, live.posted.steps)}/{live.posted.steps}"


def _outcome(live: JobLive) -> str:
    """How the job stands; a wish of its poster is in no event, so it is not known here."""
    if live.posted is None or live.state is None:
        return live.state or "posted"
    # `finished` is told before the last seal is.
    state = "running" if live.is_done and not live.is_over else live.state
    steps = live.posted.steps
    return outcome(JobState(state), Wanted.RUNNING, step=live.step, steps=steps)


def _cap(live: JobLive) -> BaseUnits:
    return live.funded if live.posted is None else live.posted.budget


def _of(earned: BaseUnits, cap: BaseUnits) -> str:
    return f"{_tokens(earned)} of {_tokens(cap)} tokens"


def _tokens(amount: BaseUnits) -> str:
    """To a thousandth, as a line that changes has no room for more."""
    return f"{amount / 10**6:.3f}"


def _span(seconds: int) -> str:
    return str(timedelta(seconds=seconds))


# ------------------------------------------------------------------------------------ following it

DAY = 86_400
SHOW_SECONDS = 0.2
PATIENCE = timedelta(minutes=2)
"""With a market that does not answer any more."""


@shows(JobView, lines=lambda view: [job_table(view)])
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
