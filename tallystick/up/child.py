"""One child process: how it is started, watched and ended.

Every child is the leader of its own session, so that a terminal's Ctrl-C reaches `up` alone, is
sent SIGKILL by the kernel when `up` ends, and carries the marks of `processes.py`. Its end is
seen through a pidfd. Not thread-safe: start children from the thread that runs the loop.
Two ways to start one: `start` executes a program; `forkserver.py` forks a process that has
imported what it needs.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from tallystick.up import launch
from tallystick.up.data_folder import rotate, tail
from tallystick.up.processes import Identity, identify_child, send
from tallystick.up.spec import OURSELVES, As


class Child:
    """A process that was started; `ended` is set when it has ended.

    Attributes:
        exit_status: Exit code, minus the signal's number, or None while it runs.
    """

    def __init__(
        self,
        identity: Identity,
        log: Path,
        log_start: int,
        *,
        ends: int,
        status: Callable[[], int],
    ) -> None:
        """`ends` can be read once it has ended; `status` then closes that, and says how."""
        self.identity = identity
        self.log = log
        self.log_start = log_start
        self.exit_status: int | None = None
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(ends, self._end, ends, status)

    def _end(self, ends: int, status: Callable[[], int]) -> None:
        asyncio.get_running_loop().remove_reader(ends)
        self.exit_status = status()
        self.ended.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        send(self.identity, number)

    async def stop(self, number: signal.Signals, *, grace: float) -> bool:
        """End it: `number`, then SIGKILL after `grace` seconds. True if it went by itself."""
        self.send(number)
        try:
            async with asyncio.timeout(grace):
                await self.ended.wait()
            return True
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.ended.wait()
            return False

    def last_words(self) -> str:
        """The end of what this process (and none before it) wrote to its log."""
        return tail(self.log, since=self.log_start)

    def has_said(self, words: str) -> bool:
        """Whether this process has written `words` within the first MiB of its log."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            return words.encode() in file.read(2**20)

    def how_it_ended(self) -> str:
        """For people: exit status or signal."""
        status = self.exit_status
        if status is None:
            return "still runs"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"exited with {status}"


class Start(Protocol):
    """A way to start a child: `start`, or one that `forkserver.starter` returns."""

    def __call__(
        self, argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path
    ) -> Child:
        """Start `argv` with exactly this environment, its output appended to `log`."""


def start(
    argv: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    log: Path,
    stdin: bytes | int | None = None,
    working_folder: Path | None = None,
    run_as: As = OURSELVES,
    dies_with_us: bool = True,
) -> Child:
    """Start `argv` with exactly this environment, its output appended to `log`.

    Args:
        stdin: At most 60 KiB to send, or a descriptor, or nothing.

    Raises:
        OSError: the log cannot be written, or no process can be made.
    """
    with appended(log) as output:
        log_start = output.tell()
        process = subprocess.Popen(
            [*prefix(run_as, dies_with_us=dies_with_us), *argv],
            stdin=_source(stdin),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=working_folder,
            umask=0o077,
            start_new_session=True,
        )
    if isinstance(stdin, bytes):
        _feed(process, stdin)
    ends = os.pidfd_open(process.pid)

    def status() -> int:
        os.close(ends)
        return process.wait()

    return Child(identify_child(process.pid), log, log_start, ends=ends, status=status)


def start_detached(
    arguments: Sequence[str], *, log: Path, **marks: str
) -> tuple["subprocess.Popen[bytes]", int]:
    """Start `tallystick ARGUMENTS` for good, in a session of its own, and say where its log begins.

    Raises:
        OSError: the log cannot be written.
    """
    with appended(log) as output:
        since = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **marks},
            start_new_session=True,
        )
    return process, since


def appended(log: Path) -> BinaryIO:
    """A log to append to, 0600, begun anew when the old one is long."""
    rotate(log)
    return open(log, "ab", opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def prefix(run_as: As, *, dies_with_us: bool) -> list[str]:
    """What stands before a command so that it dies with this process, as another user."""
    death_signal = signal.SIGKILL if dies_with_us else 0
    numbers = map(str, (os.getpid(), int(death_signal), run_as.user, run_as.group))
    return [sys.executable, "-I", "-S", str(Path(launch.__file__)), *numbers, "--"]


def _source(stdin: bytes | int | None) -> int:
    if isinstance(stdin, bytes):
        return subprocess.PIPE
    return subprocess.DEVNULL if stdin is None else stdin


def _feed(process: "subprocess.Popen[bytes]", text: bytes) -> None:
    # A pipe takes 64 KiB without a reader, so this never waits.
    assert process.stdin is not None
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:  # it ended at once; its exit status says more
        pass


async def run(
    argv: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    log: Path,
    within: float,
    stdin: bytes | None = None,
    working_folder: Path | None = None,
    run_as: As = OURSELVES,
) -> Child:
    """Run a command to its end; it is killed when time is up or the caller is cancelled.

    Raises:
        TimeoutError: it still ran after `within` seconds.
    """
    child = start(
        argv,
        environment=environment,
        log=log,
        stdin=stdin,
        working_folder=working_folder,
        run_as=run_as,
    )
    try:
        async with asyncio.timeout(within):
            await child.ended.wait()
    finally:
        if not child.ended.is_set():
            await asyncio.shield(child.stop(signal.SIGKILL, grace=5.0))
    return child
