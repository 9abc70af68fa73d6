"""Does `provider drain` reach the agent of a folder, once, and nobody else?"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
        while not Path(sys.argv[2]).exists():
            await asyncio.sleep(0.02)
        print("left in order", flush=True)
        folder.close()

asyncio.run(until_stopped(work(), lambda line: print(line, file=sys.stderr)))
"""


@contextmanager
def agent(home: Path, *, leaves: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the folder as an agent does; drained, it stays until `leaves` exists."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(home), str(leaves)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: agent_pid(home) == process.pid, within=30, what="an agent")
        yield process
    finally:
        process.kill()
        process.communicate()


def drain(home: Path, *more: str) -> tuple[int, str]:
    done = call(["provider", "drain", "--home", str(home), *more], {})
    return done.exit_code, done.stdout + done.stderr


def test_drain__peers_need_their_time__lets_them_and_waits_as_long_as_it_was_told(
    tmp_path: Path,
) -> None:
    home, leaves = tmp_path / "home", tmp_path / "leaves"
    with agent(home, leaves=leaves) as process, ThreadPoolExecutor() as threads:
        first = drain(home)
        impatient = drain(home, "--wait", "--timeout", "1")
        waiting = threads.submit(drain, home, "--wait", "--timeout", "600")
        leaves.touch()
        second = waiting.result()
        said, told = process.communicate(timeout=patience(10))

    assert (first[0], second[0], process.returncode) == (0, 0, 0)
    assert "lets its peers leave" in first[1]
    assert "has ended" in second[1] or "no agent runs" in second[1]  # it ended before we asked
    assert (impatient[0], "still lets its peers leave" in impatient[1]) == (7, True)
    assert said == "left in order\n" and "the same command resumes" in told
    assert drain(home) == (0, f"no agent runs in {home}\n")


def test_drain__dry_run_or_lock_that_names_somebody_else__signals_nobody(tmp_path: Path) -> None:
    with agent(tmp_path / "home", leaves=tmp_path) as process:
        code, _ = drain(tmp_path / "home", "--dry-run")
        assert (code, process.poll()) == (0, None)

        (tmp_path / "home" / "agent.lock").write_text(str(os.getppid()))
        with pytest.raises(Unavailable):
            agent_pid(tmp_path / "home")
