"""A poster pauses, resumes and then cancels a job over real processes: paid for what was done.

While it is paused its coordinator and the host are killed, and nothing of it moves. The audit file
of the cancelled job verifies against a block that the chain knows.
"""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import JobAction, JobView, OperationView
from tallystick.sdk.escrow import close, reclaim, told_job, until_closed, until_quit
from tallystick.sdk.watch import ask_job, until_over
from tests.support.money_story import account_of
from tests.support.stack import Stack, kill_and_see, stack, verified

LONG: dict[str, Any] = {"steps": 600, "peers_per_stage": 2, "budget": 400}
"""Much longer than the test: it ends because it is cancelled."""
NAMES = ("ann", "bob")
STILL = 4.0  # seconds in which a paused job is seen not to move


async def asked(running: Stack, job: JobId, action: JobAction) -> OperationView:
    """Ask, and wait until it is so."""
    at = UnixMillis(time.time_ns() // 1_000_000)
    operation = await ask_job(running.client, running.poster, job, action, at=at)
    within = timedelta(seconds=120)
    return await until_over(running.client, operation.operation, within=within)


async def reaches(running: Stack, job: JobId, step: int) -> JobView:
    """Wait until so many steps are sealed."""
    return await running.until(job, lambda view: view.progress.step >= step, within=120)


async def kill(running: Stack, job: JobId) -> None:
    """End the job's coordinator and the host, which are started again."""
    for module, mentions in (("tallystick.coordinator", job.hex()), ("tallystick.host", "")):
        await kill_and_see(await running.pid_of(module, mentions=mentions))


async def gets_the_rest_back(running: Stack, job: JobId) -> None:
    """The poster closes the job, and has in its wallet what nobody earned and agents gave back."""
    known, token = await told_job(running.client, job), running.contracts.token
    await until_quit(running.client, job)
    await close(running.client, running.poster, known)
    money = await until_closed(running.client, job)
    before = await token.balance(running.poster.account, await running.contracts.chain.head())
    found = await reclaim(
        running.client, running.poster, known, None, folder=running.folder / "poster", say=print
    )
    after = await token.balance(running.poster.account, await running.contracts.chain.head())
    assert money.closed_at is not None and money.releasable_at is not None
    assert after - before == found.amount == money.free == money.funded - money.committed
    assert (found.committed, found.free) == (money.committed, 0)


@pytest.mark.nightly  # a pause, a resumption and a cancellation at the API are in every run
@pytest.mark.timeout(400)
async def test_job__paused_resumed_cancelled__pays_what_was_done_and_the_audit_agrees(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True) as running:
        for name in NAMES:
            running.start_provider(name)
        job = (await running.submit(**LONG)).job
        await reaches(running, job, 3)

        paused = await asked(running, job, "pause")
        step = (await running.job(job)).progress.step
        await kill(running, job)
        await running.pid_of("tallystick.coordinator", mentions=job.hex())
        await asyncio.sleep(STILL)
        assert (await running.job(job)).progress.step == step
        resumed = await asked(running, job, "resume")
        await reaches(running, job, step + 2)
        cancelled = await asked(running, job, "cancel")
        view = await running.settled(job, within=60)
        work = await running.work(job)

        assert [each.state for each in (paused, resumed, cancelled)] == ["done"] * 3
        assert cancelled.result is not None and cancelled.result.job_state == "finished"
        assert step + 2 <= view.progress.step < LONG["steps"]
        assert 0 < view.earned == view.vested == view.claimed
        owners = {account_of(running, name) for name in NAMES}
        assert {account for account, pay in work.pay.items() if pay.earned} <= owners  # as dealt
        assert sum(pay.vested for pay in work.pay.values()) == view.claimed
        await gets_the_rest_back(running, job)
        assert (await verified(running, job))["ended"]
