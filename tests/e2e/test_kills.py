"""Losing any one process at any moment loses no work and no money (docs/architecture.md 6).

One stack, two equal jobs: the first undisturbed, the second with a SIGKILL in each of its windows.
The windows are made by failpoints: a process stops itself (SIGSTOP) right after the line that
opens the window, the victim is killed, the window is seen to be still open, and the process goes
on. Weights, losses and payments of both jobs must be equal, byte for byte.
"""

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from contracts.terms.history import Kept
from contracts.terms.ids import JobId
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim
from tallystick.up.processes import Identity, send
from tests.support.patience import patience
from tests.support.stack import Stack, kill_and_see, restarted, stack

SERVICES = (
    "postgres",
    "redis",
    "anvil",
    "gateway",
    "api",
    "worker",
    "worker-chain",
    "beat",
    "host",
)
JOB_PROCESSES = ("coordinator", "agent", "peer")
FIRST_STEP = 2
WINDOWS = {
    "claim_stored": "bucket_stored",  # the last claim and RoundClosed are stored together
    "round_closed": "bucket_stored",
    "bucket_stored": "seal_stored",
    "seal_stored": "seal_applied",
}
"""Lines of the coordinator's log: what opens a window, and what closes it."""


async def _roots(running: Stack, job: JobId) -> list[bytes]:
    """State roots that the peer's claims began with, round by round."""
    kept: list[Kept] = [item async for _, item in running.client.messages(job)]
    claims = [item.message for item in kept if isinstance(item, Signed)]
    return [each.base for each in claims if isinstance(each, WorkClaim) and each.what == "work"]


async def _money(running: Stack, job: JobId) -> tuple[int, int, int]:
    view = await running.settled(job, within=90)
    return view.earned, view.vested, view.claimed


async def _victim(running: Stack, name: str, job: JobId) -> Identity:
    if name == "agent":
        return running.providers["ann"].identity
    if name == "peer":
        return await running.pid_of("tallystick.provider.peer")
    if name in JOB_PROCESSES:
        return await running.pid_of(f"tallystick.{name}", mentions=job.hex())
    return running.services.identity(name)


async def _disturb(running: Stack, job: JobId, names: Iterable[str], opens: str) -> None:
    """Kill `names` one after the other, each while the window that `opens` opens is open."""
    log = running.coordinator_log(job)
    closes = WINDOWS[opens]
    for step, name in enumerate(names, FIRST_STEP):
        await running.wait_line(log, "failpoint", step=step)
        coordinator = await running.pid_of("tallystick.coordinator", mentions=job.hex())
        victim = await _victim(running, name, job)

        await kill_and_see(victim)

        passed = [line["step"] for line in running.lines(log, closes)]
        assert step not in passed, f"{name}: the window of step {step} was over"
        if name == "agent":
            running.start_provider("ann")
        send(coordinator, signal.SIGCONT)
        await running.wait_line(log, closes, step=step, within=60)
        if name in SERVICES:
            await restarted(running.services.folder, name, victim)


@pytest.mark.nightly
@pytest.mark.timeout(500)
@pytest.mark.parametrize("opens", WINDOWS)
async def test_kill__each_process_in_a_window_of_a_step__nothing_differs(
    opens: str, tmp_path: Path
) -> None:
    names = (*JOB_PROCESSES, *SERVICES)
    steps = FIRST_STEP + len(names) + 1
    async with stack(tmp_path) as running:
        running.start_provider("ann")
        calm = await running.submit(steps=steps)
        view = await running.settled(calm.job, within=120)
        assert view.claimed == view.vested == view.earned > 0
        assert view.funded == view.committed + view.free

        disturbed = await running.submit(steps=steps)
        folder = running.job_folder(disturbed.job)
        folder.mkdir(parents=True)
        (folder / "failpoints-coordinator").write_text(
            ",".join(f"stop:{opens}:{FIRST_STEP + i}" for i in range(len(names)))
        )
        await _disturb(running, disturbed.job, names, opens)

        assert await _money(running, disturbed.job) == await _money(running, calm.job)
        roots = await _roots(running, disturbed.job)
        assert roots == await _roots(running, calm.job)
        assert len(roots) == steps
        losses = [r.loss_millionths for r in (await running.job(disturbed.job)).reports]
        assert losses == [r.loss_millionths for r in (await running.job(calm.job)).reports]


PHASES = ("stored", "broadcast")


@pytest.mark.nightly
@pytest.mark.timeout(500)
@pytest.mark.parametrize("phase", PHASES)
async def test_kill__while_a_claim_is_stored_or_broadcast__everybody_is_paid_once(
    phase: str, tmp_path: Path
) -> None:
    async with stack(tmp_path) as running:
        run, log = running.home / "run", running.home / "logs" / "worker-chain.log"
        running.start_provider("ann")
        jobs = list[JobId]()
        for number, name in enumerate(SERVICES, 1):
            (run / "failpoints-market").write_text(f"stop:claim_{phase}:0")
            jobs.append((await running.submit(steps=FIRST_STEP)).job)
            async with asyncio.timeout(patience(120)):
                while len(running.lines(log, "failpoint")) < number:
                    await asyncio.sleep(0.05)
            worker, victim = (running.services.identity(each) for each in ("worker-chain", name))
            await kill_and_see(victim)
            (run / "failpoints-market").unlink()
            for mark in run.glob("failpoints-market-*.done"):
                mark.unlink()
            if name != "worker-chain":
                send(worker, signal.SIGCONT)
            await restarted(running.services.folder, name, victim)
        views = [await running.settled(job, within=120) for job in jobs]

        escrow, head = running.contracts.escrow, await running.contracts.chain.head()
        claims = [log for log in await escrow.events(0, head.number) if log.event == "Claimed"]
        for job, view in zip(jobs, views, strict=True):
            paid = [log.args["amount"] for log in claims if log.args["job"] == job]
            assert paid == [view.earned] and view.claimed == view.vested == view.earned > 0
