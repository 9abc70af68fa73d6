"""Asking a job to pause, to resume or to end; what is asked is signed once and watched to its end.

Nothing of it is kept on disk: what is asked twice is wanted once, so a call that was interrupted is
made again as it was.
"""

import asyncio
import hashlib
from collections.abc import Callable
from datetime import timedelta

from contracts.keys.wallet import Wallet
from contracts.terms.errors import DeadlineExceeded
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import AskJob, JobAction, OperationView
from market.bodies.routes import GET_OPERATION, POST_CANCEL, POST_PAUSE, POST_RESUME, Route
from tallystick.sdk.client import MarketClient, retrying

DONE_STATES = ("finished", "closed", "failed")
"""States in which nothing is trained any more."""
LOOK_EVERY = 0.5  # seconds
PATIENCE = timedelta(seconds=30)  # with a market that does not answer
_ROUTES: dict[JobAction, Route[OperationView]] = {
    "pause": POST_PAUSE,
    "resume": POST_RESUME,
    "cancel": POST_CANCEL,
}


async def ask_job(
    client: MarketClient,
    wallet: Wallet,
    job: JobId,
    action: JobAction,
    *,
    at: UnixMillis,
) -> OperationView:
    """Ask the market to pause, resume or cancel `job`.

    Args:
        client: The market.
        wallet: The job's poster.
        job: Which.
        action: What is wanted from now on.
        at: This machine's clock; within two minutes of the market's, and later than at any call
            before, or it is a replay.

    Raises:
        Forbidden: another wallet posted the job.
        Expired: the clocks differ, or something was asked at this moment or a later one.
        Conflict: the job is over, or was cancelled.
        NotFound, Unavailable: as the market answers.
    """
    body = AskJob(at=at)
    key = hashlib.sha256(action.encode() + body.json_bytes()).hexdigest()
    return await retrying(
        lambda: client.call(_ROUTES[action], body, key=key, by=wallet, job=job), patience=PATIENCE
    )


async def until_over(
    client: MarketClient,
    operation: Digest,
    *,
    within: timedelta,
    on_change: Callable[[OperationView], None] = lambda view: None,
) -> OperationView:
    """Wait until an operation is done or has failed.

    Args:
        client: The market.
        operation: As `ask_job` answered.
        within: How long; a cancel lasts until the last seal.
        on_change: Told whenever it waits for something else, and at last.

    Raises:
        DeadlineExceeded: it still waits; data: `waits_for`.
    """
    loop, seen = asyncio.get_running_loop(), None
    ends = loop.time() + within.total_seconds()
    while True:
        left = timedelta(seconds=max(0.0, ends - loop.time()))
        view = await retrying(
            lambda: client.call(GET_OPERATION, operation=operation), patience=left
        )
        if (view.state, view.waits_for) != seen:
            seen = view.state, view.waits_for
            on_change(view)
        if view.state != "pending":
            return view
        if loop.time() >= ends:
            raise DeadlineExceeded(f"it waits for: {view.waits_for}", waits_for=view.waits_for)
        await asyncio.sleep(LOOK_EVERY)
