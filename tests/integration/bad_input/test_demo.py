"""The demo, interrupted while it trains: stops cleanly, and the same command goes on with its job.

The port that the market usually has is taken meanwhile: the demo takes another.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tallystick.up.ports import API_PORT
from tallystick.up.processes import RUN_ID, environment_of, running
from tests.support.patience import patience
from tests.support.stack import ROOT

STEP = re.compile(r"step +(\d+)/")
CTRL_C = 130


class Demo:
    """A running `tallystick demo`."""

    def __init__(self, home: Path, output: Path) -> None:
        self.home, self.output = home, output
        kept = {name: v for name, v in os.environ.items() if not name.startswith("TALLYSTICK_")}
        with output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tallystick", "demo", "--home", str(home)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**kept, "PYTHONUNBUFFERED": "1"},
            )

    def said(self) -> str:
        """What it has printed until now."""
        return self.output.read_text(errors="replace")

    def steps(self) -> list[int]:
        """The steps it has told of."""
        return [int(number) for number in STEP.findall(self.said())]

    def until_step(self, wanted: int) -> None:
        """Wait until a step with this number, or a later one, is trained."""
        self._until(lambda: max(self.steps(), default=0) >= wanted)

    def interrupt(self) -> int:
        """Ctrl-C, twice, as impatient people do; the exit code."""
        self.process.send_signal(signal.SIGINT)
        self._until(lambda: "\nstopping\n" in self.said())
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def _until(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + patience(120)
        while not holds():
            assert self.process.poll() is None and time.monotonic() < ends, self.said()
            time.sleep(0.05)

    def left(self) -> list[int]:
        """Processes that carry its run's id."""
        run_id = json.loads((self.home / "market" / "run" / "up.json").read_text())["run_id"]
        return [one.pid for one in running() if environment_of(one.pid).get(RUN_ID) == run_id]


@contextmanager
def demo(home: Path, output: Path) -> Iterator[Demo]:
    started = Demo(home, output)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            started.process.wait(60)


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Nobody else can listen on this port."""
    with socket.socket() as listener:
        with contextlib.suppress(OSError):  # somebody has it already
            listener.bind(("127.0.0.1", port))
            listener.listen()
        yield


@pytest.mark.nightly  # three minutes: the whole demo starts twice
@pytest.mark.timeout(300)
def test_demo__ctrl_c_while_it_trains__leaves_nothing_and_the_same_home_goes_on(
    tmp_path: Path,
) -> None:
    home = tmp_path / "the demo"
    with taken(API_PORT):
        with demo(home, tmp_path / "first") as first:
            first.until_step(1)
            assert len(first.left()) > 10
            assert first.interrupt() == CTRL_C
        assert first.said().rstrip().endswith("stopped cleanly")
        assert first.left() == []

        with demo(home, tmp_path / "second") as second:
            second.until_step(first.steps()[-1] + 1)
            assert second.interrupt() == CTRL_C
        assert second.left() == []

    [job] = re.findall(r"job ([0-9a-f]{64})\n", first.said())
    assert f"job {job} of this home goes on" in second.said()
    assert "Traceback" not in first.said() + second.said()
