"""What a poster asks of a job that lasts: `job pause`, `resume` and `cancel`."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import Conflict, Forbidden
from contracts.terms.ids import Address, JobId, JobIdField
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect
from market.bodies.base import Body
from market.bodies.jobs import (
    JobAction,
    JobState,
    JobView,
    JobWanted,
    OperationError,
    OperationView,
    OperationWait,
)
from market.bodies.routes import GET_JOB
from tallystick.cli.job_watch import DAY
from tallystick.cli.options import (
    DryRun,
    Job,
    Market,
    PosterWallet,
    Timeout,
    poster_wallet,
)
from tallystick.cli.options import ask_of_job as ask
from tallystick.cli.output import notice, shows
from tallystick.cli.wallet import account_in, open_wallet
from tallystick.sdk.client import MarketClient
from tallystick.sdk.watch import DONE_STATES, ask_job, until_over

_WAITS_FOR: dict[OperationWait, str] = {
    "host": "a host",
    "coordinator": "the job's coordinator",
}
_ERRORS: dict[OperationError, str] = {
    "superseded": "something else was asked of the job first",
    "ended": "the job ended first",
}

Wait = Annotated[bool, typer.Option("--wait", help="Until it is done.")]


# ------------------------------------------------------------------------ pause, resume, cancel


class Asked(Body):
    """What was asked of a job and how far that is; a dry run asks nothing."""

    job: JobIdField
    action: JobAction
    state: JobState  # of the job before
    wanted: JobWanted  # of it before
    operation: OperationView | None  # None: a dry run


def _asked_lines(asked: Asked) -> Iterator[str]:
    if asked.operation is None:
        yield f"would {asked.action} {asked.job.hex()}, which is {asked.state}"
        return
    yield _said_of(asked.operation)
    if asked.operation.state == "pending":
        yield "the same command with --wait says when it is done"


def _said_of(view: OperationView) -> str:
    if view.waits_for is not None:
        return f"{view.action}: waits for {_WAITS_FOR[view.waits_for]}"
    if (result := view.result) is None:
        return f"{view.action}: {view.state}"
    return f"{view.action}: done; the job is {result.job_state}"


def _wish(action: JobAction, doc: str) -> Callable[..., None]:
    """The verb that asks for `action`; `doc` is its help."""

    def verb(
        job: Job,
        market: Market = None,
        wallet: PosterWallet = None,
        wait: Wait = False,
        timeout: Timeout = DAY,
        dry_run: DryRun = False,
    ) -> Asked:
        return _ask(action, job, market, wallet, timeout if wait else None, dry_run=dry_run)

    verb.__doc__ = doc
    return shows(Asked, lines=_asked_lines)(verb)


pause_command = _wish(
    "pause",
    """Pause a job after the step in work; its deadline goes on.

    Example: tallystick job pause JOB --wait
    """,
)
resume_command = _wish(
    "resume",
    """Let a paused job go on.

    Example: tallystick job resume JOB --wait
    """,
)
cancel_command = _wish(
    "cancel",
    """End a job for good after the step in work: what was done is paid.

    `tallystick job close` and `job reclaim` then bring the rest back.

    Example: tallystick job cancel JOB --wait --timeout 600
    """,
)


def _ask(
    action: JobAction,
    job: str,
    market: str | None,
    wallet: Path | None,
    timeout: int | None,
    *,
    dry_run: bool,
) -> Asked:
    keystore = poster_wallet(wallet)
    poster = account_in(keystore)

    async def run(client: MarketClient, wanted: JobId) -> Asked:
        view = await client.call(GET_JOB, job=wanted)
        asked = Asked(
            job=wanted, action=action, state=view.state, wanted=view.wanted, operation=None
        )
        if dry_run:
            _check(view, poster)
            return asked
        own, at = open_wallet(keystore), UnixMillis(time.time_ns() // 10**6)
        operation = await ask_job(client, own, wanted, action, at=at)
        if timeout is not None:
            operation = await _until_over(client, operation, timeout)
        return asked.model_copy(update={"operation": operation})

    return ask(market, job, run)


def _check(view: JobView, poster: Address) -> None:
    """Refuse what the market would.

    Raises:
        Forbidden: another wallet posted the job. Conflict: it is over.
    """
    if expect(decode_signed(view.signed), JobSpec).message.poster != poster:
        raise Forbidden("only its poster pauses, resumes or cancels a job", account=poster)
    if view.state in DONE_STATES:
        raise Conflict(f"a job that is {view.state} cannot be changed", state=view.state)


async def _until_over(client: MarketClient, asked: OperationView, timeout: int) -> OperationView:
    """Wait for what was asked; raises Conflict if it will not happen."""
    over = await until_over(
        client,
        asked.operation,
        within=timedelta(seconds=timeout),
        on_change=lambda view: notice(_said_of(view)),
    )
    if over.error is not None:
        raise Conflict(f"{over.action}: {_ERRORS[over.error]}", error=over.error)
    return over
