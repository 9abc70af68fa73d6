"""A poster pauses, resumes and then cancels a job over real processes: paid for what was done.

While it is paused its coordinator and the host are killed, and nothing of it moves. The audit file
of the cancelled job verifies against a block that the chain knows.
"""

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.keys.store import load_or_create_wallet
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market import bodies
from tallystick.demo.story import exported_anchor
from tallystick.sdk.asking import ask_job, until_over
from tests.support.stack import Stack, kill_and_see, stack

LONG: dict[str, Any] = {"steps": 600, "peers_per_stage": 2, "budget": 400}
"""Much longer than the test: it ends because it is cancelled."""
NAMES = ("ann", "bob")
STILL = 4.0  # seconds in which a paused job is seen not to move


async def asked(running: Stack, job: JobId, action: bodies.JobAction) -> bodies.OperationView:
    """Ask, and wait until it is so."""
    at = UnixMillis(time.time_ns() // 1_000_000)
    operation = await ask_job(running.client, running.poster, job, action, at=at)
    within = timedelta(seconds=120)
    return await until_over(running.client, operation.operation, within=within)


async def reaches(running: Stack, job: JobId, step: int) -> bodies.JobView:
    """Wait until so many steps are sealed."""
    return await running.until(job, lambda view: view.progress.step >= step, within=120)


async def kill(running: Stack, job: JobId) -> None:
    """End the job's coordinator and the host, which are started again."""
    for module, mentions in (("tallystick.coordinator", job.hex()), ("tallystick.host", "")):
        await kill_and_see(await running.pid_of(module, mentions=mentions))


async def verified(running: Stack, job: JobId) -> str:
    """What `audit verify` says of the job's file, anchored in a block that the chain knows."""
    file = str(running.folder / "audit.tally")
    said = command(running, "export", job.hex(), "--market", running.client.url, "--to", file)
    anchor = exported_anchor(said)
    assert await running.contracts.chain.request("eth_getBlockByHash", [anchor, False])
    settlement = f"0x{running.contracts.deployment.settlement.hex()}"
    return command(running, "verify", file, "--anchor", anchor, "--settlement", settlement)


def command(running: Stack, *words: str) -> str:
    """What a command of the audit prints; it has to succeed."""
    done = subprocess.run(
        (sys.executable, "-m", "tallystick", "audit", *words),
        env=os.environ | running.environment("audit"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


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
        assert cancelled.result is not None and cancelled.result.job_state == "refunded"
        assert step + 2 <= view.progress.step < LONG["steps"]
        assert 0 < view.earned == view.debited == view.paid
        assert view.refunded == view.escrowed - view.earned == cancelled.result.refunded
        owners = [load_or_create_wallet(running.folder / name / "wallet.json") for name in NAMES]
        assert {account for account, pay in work.pay.items() if pay} <= {  # as the router dealt
            each.account for each in owners
        }
        assert sum(work.pay.values()) == view.earned
        await verified(running, job)  # exit code 0: anchored


@pytest.mark.chaos  # most of a minute; the same at the API is in every run
@pytest.mark.timeout(300)
async def test_job__cancelled_before_anybody_offers__is_ended_by_its_coordinator_and_refunded(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path) as running:
        job = (await running.submit(checking="on", budget=40, steps=8)).job
        await running.until(job, lambda view: view.state == "funded", within=60)

        cancelled = await asked(running, job, "cancel")
        view = await running.job(job)

        assert cancelled.state == "done" and cancelled.result is not None
        assert view.refunded == view.escrowed == cancelled.result.refunded
        assert (view.earned, view.leases, view.opening is None) == (0, (), False)
        await verified(running, job)
