"""A run that hangs ends: a test has ten minutes at most, and so has a run that finishes no test.

`pytest-timeout` ends a test at its own limit, where the interpreter still takes signals. Where it
does not, or where a fixture or the run itself waits for ever, `Watch` prints the running tests and
the stacks of all threads of this run's pytest processes, ends all processes of the run by their
ids, and exits with `HANGS`.
"""

import faulthandler
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.support.patience import LIMIT

HANGS = 70
"""Exit status of a run that was ended here."""

RUN = "TALLYSTICK_TESTS_RUN"
"""Environment variable by which processes of one run know each other, detached ones included."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--hang-limit`."""
    parser.addoption(
        "--hang-limit", type=float, default=LIMIT, help="seconds without a finished test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let stacks be asked for by signal; watch in the process that hears of all tests."""
    # pytest captures what is written to 2 while a test runs
    errors = os.dup(2)
    faulthandler.register(signal.SIGUSR1, file=errors, all_threads=True)
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = uuid4().hex
        config.pluginmanager.register(Watch(config.getoption("hang_limit"), errors), "watch")


class Watch:
    """Ends a run in which no test finishes for `limit` seconds; writes to descriptor `errors`."""

    def __init__(self, limit: float, errors: int) -> None:
        self._limit, self._errors = limit, errors
        self._running: dict[str, float] = {}  # test -> when it began
        self._progress = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note a test that has ended."""
        self._running.pop(nodeid, None)
        self._progress = time.monotonic()

    def _watch(self) -> None:
        while (left := self._progress + self._limit - time.monotonic()) > 0:
            time.sleep(left)
        self._end()

    def _end(self) -> None:
        now = time.monotonic()
        self._say(f"\nHANGS: no test finished for {self._limit:.0f} s. Running:")
        for nodeid, began in list(self._running.items()):
            self._say(f"  {nodeid} for {now - began:.0f} s")
        for process in (psutil.Process(), *psutil.Process().children()):
            with suppress(psutil.Error):  # it has ended
                if _takes_signal(process.pid):
                    self._say(f"stacks of {process.pid}:")
                    process.send_signal(signal.SIGUSR1)
                    time.sleep(1)  # it writes, and cannot say when it has
        for process in processes_of(os.environ[RUN]):
            with suppress(psutil.Error):
                self._say(f"ends {process.pid} {process.name()}")
                process.kill()
        os._exit(HANGS)  # at once: xdist would replace its workers

    def _say(self, line: str) -> None:
        os.write(self._errors, f"{line}\n".encode())


def _takes_signal(pid: int) -> bool:
    """Whether a process handles SIGUSR1, as pytest's workers do; others would die of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it is gone
        return False
    caught = status.partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def processes_of(run: str) -> list[psutil.Process]:
    """The other processes that this run started, also those that left their parents."""
    own, mine = psutil.Process(), []
    inherited = {each.pid for each in own.children(recursive=True)}
    for process in psutil.process_iter():
        try:
            is_ours = process.pid in inherited or process.environ().get(RUN) == run
        except psutil.Error:  # it is gone, or another user's
            continue
        if is_ours and process != own:
            mine.append(process)
    return mine
