"""SIGKILL of `up` itself, with a job in the middle: nothing survives it, the next one resumes."""

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.bodies.routes import GET_JOB
from tallystick.gym.registry import MODULE
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.submit import submit
from tallystick.up import processes
from tallystick.up.ports import choose
from tallystick.up.processes import RUN_ID, Identity, environment_of, send
from tests.integration.up.running import eventually, running
from tests.support.history import make_wallet
from tests.support.patience import patience
from tests.support.stack import ASK, HOOKS, MICRO_JOB

STEPS = 6
STOPS_AT = 3


def living(run_id: str) -> list[Identity]:
    """Processes that carry the run's id."""
    return [one for one in processes.running() if environment_of(one.pid).get(RUN_ID) == run_id]


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of somebody at a terminal: the same for each command."""
    run_id = secrets.token_hex(16)
    yield {"TALLYSTICK_HOME": str(tmp_path / "person"), RUN_ID: run_id, HOOKS: MODULE}
    for one in living(run_id):
        send(one, signal.SIGKILL)


async def post(url: str, folder: Path) -> JobId:
    job, now = parse_job_file(MICRO_JOB | {"steps": STEPS}), UnixSeconds(int(time.time()))
    orders, data, wallet = folder / "orders", folder / "data", make_wallet("poster")
    async with MarketClient(url) as client:
        return (await submit(client, wallet, job, orders=orders, data=data, now=now)).job


async def state_of(url: str, job: JobId) -> str:
    async with MarketClient(url) as client:
        return (await client.call(GET_JOB, job=job)).state


@pytest.mark.timeout(200)
def test_up__killed_in_the_middle_of_a_job__nothing_survives_and_the_next_resumes(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    home, port = tmp_path / "market", str(choose((), random.SystemRandom()))
    url, words = f"http://127.0.0.1:{port}", ("--port", port)
    with running(home, only="", arguments=words, **variables) as up:
        job = asyncio.run(post(url, tmp_path))
        folder = home / "jobs" / job.hex()
        folder.mkdir(parents=True)
        (folder / "failpoints-coordinator").write_text(f"stop:claim_stored:{STOPS_AT}")
        with (tmp_path / "provider.log").open("wb") as log:
            own = ("--market", url, "--home", str(tmp_path / "ann"), "--ask", ASK)
            provider = subprocess.Popen(
                (sys.executable, "-m", "tallystick", "provider", "start", *own),
                env=os.environ | variables, stdout=log, stderr=log,
            )  # fmt: skip
        struck = folder / f"failpoints-coordinator-stop-claim_stored-{STOPS_AT}.done"
        eventually(struck.exists, within=60, what="a round is in the middle")

        up.process.kill()

        eventually(lambda: up.alive() == [], within=5, what="nothing of it is alive")
    with running(home, only="", arguments=words, **variables) as again:
        ended = ("finished", "closed")
        eventually(lambda: asyncio.run(state_of(url, job)) in ended, within=90, what="it is over")
        provider.send_signal(signal.SIGTERM)
        provider.wait(patience(20))
        assert again.stop() == 0
    assert living(variables[RUN_ID]) == []
