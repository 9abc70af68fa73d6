"""How an agent outlives its terminal, and where it writes what it says: `logs/agent.log`.

In the foreground each line goes to the terminal and to the log; a terminal that is closed (SIGHUP)
ends the agent in order, and the log says so. With `--detach` the same command runs in a session of
its own, with the log as its output; `provider status` finds it by its lock, `drain` ends it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from contracts.terms.errors import Refused, Unavailable
from contracts.terms.printable import printable
from tallystick.provider.faults import Say
from tallystick.provider.folder import DRAIN_SIGNAL
from tallystick.up.child import appended
from tallystick.up.data_folder import tail

DETACHED = "TALLYSTICK_PROVIDER_DETACHED"
BEGUN = ("offering at ", "auditing from outside", "waiting: ", "the disk ", "the other agents ")
"""What an agent says once it is past what its owner has to mend."""
BEGIN_SECONDS = 120.0
CLOSED = (
    "the terminal was closed (SIGHUP): the agent ends in order; `provider start --detach` keeps one"
)


def stamped(line: str, now: datetime | None = None) -> str:
    """A line of a log with its moment, UTC to the second."""
    moment = datetime.now(UTC) if now is None else now
    return f"{moment:%Y-%m-%d %H:%M:%S}Z {line}"


def log_of(home: Path) -> Path:
    """The log of a provider's agent; its folder is made."""
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / "agent.log"


class AgentLog:
    """Says lines with their time: to the terminal while there is one, and to the log."""

    def __init__(self, home: Path, terminal: Say) -> None:
        self._home, self._terminal = home, terminal
        self._file: BinaryIO | None = None
        self._is_terminal_the_log = DETACHED in os.environ

    def __call__(self, line: str) -> None:
        """Say it; neither a closed terminal nor a full disk stops an agent."""
        text = stamped(printable(line))
        with contextlib.suppress(OSError):
            self._terminal(text)
        if self._is_terminal_the_log or not self._home.exists():  # nothing is made for a refusal
            return
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = appended(log_of(self._home))
            self._file.write(f"{text}\n".encode())
            self._file.flush()

    def close(self) -> None:
        """Close the log."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()


async def until_stopped(work: Coroutine[None, None, None], say: Say) -> None:
    """Run an agent until it ends, or a signal lets it end in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(DRAIN_SIGNAL, _once(task.cancel))  # to ask again hurries nobody

    def closed() -> None:
        say(CLOSED)
        task.cancel()

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else nohup(1) was asked to keep it
        loop.add_signal_handler(signal.SIGHUP, _once(closed))
    try:
        await task
    except asyncio.CancelledError:
        say("stopped; the same command resumes")


def _once(act: Callable[[], object]) -> Callable[[], None]:
    is_done = False

    def first() -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            act()

    return first


def detach(home: Path, arguments: Sequence[str]) -> int:
    """Start `tallystick ARGUMENTS` for good, in a session of its own; returns its pid.

    Returns when it has begun to work, or waits for what may come.

    Raises:
        Refused: it ended at once; the message is its own.
        Unavailable: the log cannot be written.
    """
    try:
        log = log_of(home)
        output = appended(log)
    except OSError as error:
        raise Unavailable(f"cannot write the log in {home}: {error.strerror}") from error
    with output:
        since = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, DETACHED: "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    ends = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise Refused(tail(log, since=since).strip() or "the agent ended without a word")
        if any(words in tail(log, since=since) for words in BEGUN):
            break
        time.sleep(0.1)
    process.returncode = 0  # it goes on without us: no warning about a child that was left
    return process.pid
