"""SIGKILL of `up` itself, with a job in the middle: nothing survives it, the next one resumes."""

import asyncio
import json
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts.terms.moments import UnixSeconds
from market.bodies.routes import GET_JOBS
from tallystick.gym.registry import MODULE
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.submit import Submitted, submit
from tallystick.up.ports import choose
from tallystick.up.processes import (
    RUN_ID,
    Identity,
    Ticks,
    environment_of,
    leftovers,
    running,
    send,
)
from tests.support.history import make_wallet
from tests.support.patience import patience
from tests.support.stack import ASK, HOOKS, MICRO_JOB, ROOT

STEPS = 6
STOPS_AT = 3


class Person:
    """Somebody at a terminal: the same environment for each command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "market"
        self.run_id = secrets.token_hex(16)
        self.port = choose((), random.SystemRandom())
        self.provider: subprocess.Popen[bytes] | None = None
        self.environment = {
            "PATH": "/usr/bin:/bin:/usr/local/bin",
            "PYTHONPATH": str(ROOT),
            "TALLYSTICK_HOME": str(folder / "person"),
            RUN_ID: self.run_id,
            HOOKS: MODULE,
        }

    def tallystick(self, *words: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "tallystick", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=patience(90),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def up(self) -> tuple[str, Identity, str]:
        """Start the services; the API's URL, the process of `up` and its id."""
        self.tallystick("up", "--home", str(self.home), "--port", str(self.port), "--detach")
        about = json.loads((self.home / "run" / "up.json").read_text())
        identity = Identity(about["pid"], Ticks(about["start_time"]))
        return f"http://127.0.0.1:{self.port}", identity, about["up_id"]

    def end(self) -> None:
        """SIGKILL whatever carries the run's id."""
        for one in running():
            if environment_of(one.pid).get(RUN_ID) == self.run_id:
                send(one, signal.SIGKILL)


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    somebody = Person(tmp_path)
    yield somebody
    somebody.end()
    if somebody.provider:
        somebody.provider.wait(10)


async def _post(url: str, folder: Path) -> Submitted:
    async with MarketClient(url) as client:
        return await submit(
            client,
            make_wallet("poster"),
            parse_job_file(MICRO_JOB | {"steps": STEPS}),
            orders=folder / "orders",
            now=UnixSeconds(int(time.time())),
        )


@pytest.mark.timeout(200)
def test_up__killed_in_the_middle_of_a_job__nothing_survives_and_the_next_resumes(
    person: Person,
) -> None:
    url, up, up_id = person.up()
    job = asyncio.run(_post(url, person.folder)).job
    folder = person.home / "jobs" / job.hex()
    folder.mkdir(parents=True)
    (folder / "failpoints-coordinator").write_text(f"stop:claim_stored:{STOPS_AT}")
    with (person.folder / "provider.log").open("wb") as log:
        provider = person.provider = subprocess.Popen(
            [
                *(sys.executable, "-m", "tallystick", "provider", "start"),
                *("--market", url, "--home", str(person.folder / "ann"), "--ask", ASK),
            ],
            env=person.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    _until(
        lambda: (folder / f"failpoints-coordinator-stop-claim_stored-{STOPS_AT}.done").exists(),
        60,
    )

    assert send(up, signal.SIGKILL)

    _until(lambda: not leftovers(up_id), 5)
    person.up()
    _until(lambda: asyncio.run(_state(url, job.hex())) in ("finished", "closed"), 90)
    provider.send_signal(signal.SIGTERM)
    provider.wait(20)
    person.tallystick("down", "--home", str(person.home))
    left = [one for one in running() if environment_of(one.pid).get(RUN_ID) == person.run_id]
    assert not left


async def _state(url: str, job: str) -> str:
    async with MarketClient(url) as client:
        found = [one for one in (await client.call(GET_JOBS)).jobs if one.job.hex() == job]
    return found[0].state


def _until(holds: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + patience(seconds)
    while not holds():
        assert time.monotonic() < ends, f"not within {seconds} s"
        time.sleep(0.05)
