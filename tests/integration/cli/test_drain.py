"""Does `provider drain` reach the agent of a folder, once, and nobody else?"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.terms.errors import Unavailable
from tallystick.provider.folder import agent_pid
from tests.integration.bad_input.verbs import call
from tests.integration.up.running import eventually
from tests.support.patience import patience
from tests.support.stack import ROOT

AGENT = """
import asyncio, sys
from pathlib import Path
from tallystick.provider.background import until_stopped
from tallystick.provider.folder import ProviderFolder

async def work():
    folder = ProviderFolder(Path(sys.argv[1]))
    try:
        await asyncio.sleep(60)
    finally:
        print("leaving", flush=True)
        await asyncio.sleep(float(sys.argv[2]))
        print("left in order", flush=True)
        folder.close()

asyncio.run(until_stopped(work(), lambda line: print(line, file=sys.stderr)))
"""


def has_said_its_pid(process: "subprocess.Popen[str]", home: Path) -> bool:
    try:
        return agent_pid(home) == process.pid
    except Unavailable:  # it has the lock, and writes its pid next
        return False


@contextmanager
def agent(home: Path, *, leaves_within: float) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the folder as an agent does, and takes its time to leave."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(home), str(leaves_within)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: (home / "agent.lock").exists(), within=30, what="an agent")
        eventually(lambda: has_said_its_pid(process, home), within=5, what="its pid")
        yield process
    finally:
        process.kill()
        process.communicate()


def drain(home: Path, *more: str) -> tuple[int, str]:
    done = call(["provider", "drain", "--home", str(home), *more], {})
    return done.exit_code, done.stdout + done.stderr


def test_drain__asked_twice_while_peers_leave__lets_them_and_waits(tmp_path: Path) -> None:
    with agent(tmp_path, leaves_within=patience(3)) as process:
        first = drain(tmp_path)
        second = drain(tmp_path, "--wait", "--timeout", "30")
        said, told = process.communicate(timeout=patience(10))

    assert (first[0], second[0], process.returncode) == (0, 0, 0)
    assert "lets its peers leave" in first[1] and "has ended" in second[1]
    assert said == "leaving\nleft in order\n" and "the same command resumes" in told
    assert drain(tmp_path) == (0, f"no agent runs in {tmp_path}\n")


def test_drain__dry_run__signals_nobody(tmp_path: Path) -> None:
    with agent(tmp_path, leaves_within=0.0) as process:
        code, _ = drain(tmp_path, "--dry-run")

        assert (code, process.poll()) == (0, None)


def test_drain__slow_agent__is_given_up_on_as_a_time_out(tmp_path: Path) -> None:
    with agent(tmp_path, leaves_within=30.0):
        code, said = drain(tmp_path, "--wait", "--timeout", "1")

    assert (code, "still lets its peers leave" in said) == (7, True)


def test_agent_pid__lock_names_somebody_else__is_signalled_to_nobody(tmp_path: Path) -> None:
    with agent(tmp_path, leaves_within=0.0):
        (tmp_path / "agent.lock").write_text(str(os.getppid()))

        with pytest.raises(Unavailable):
            agent_pid(tmp_path)
