"""How an agent lives: in the terminal or behind it, what its log says, and whether it was asleep.

In the foreground each line goes to the terminal and to `logs/agent.log`; a terminal that is closed
(SIGHUP) ends the agent in order, and the log says so. With `--detach` the same command runs in a
session of its own, with the log as its output; `provider status` finds it by its lock, `drain` ends
it.

What is tried each second fails each second, in words that may differ a little; so a fault has a
name, and the newest words are told again after one, five, fifteen and then every sixty minutes. Two
tasks that fail for one reason tell it once.

Sleep is told from three clocks, by how they moved: CLOCK_BOOTTIME goes on while a machine sleeps,
CLOCK_MONOTONIC does not; both go on while a process is stopped, and neither moves when somebody
sets the clock. Units: seconds.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

from contracts.keys.wallet import Session
from contracts.terms.errors import Misbehaved, Refused, Unavailable
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.printable import printable
from market.bodies.offers import Heartbeat
from market.bodies.signing import heartbeat_digest
from tallystick.provider.folder import DRAIN_SIGNAL
from tallystick.up.child import appended, start_detached
from tallystick.up.data_folder import tail

# ------------------------------------------------------------------------------------------ faults

REMINDERS = tuple(timedelta(minutes=each) for each in (1, 5, 15, 60))
"""Time between two lines about one fault that lasts; the last one repeats."""

PASSING = (Refused, Misbehaved, Unavailable, OSError)
"""Errors that may be over when the same is tried again."""

Say = Callable[[str], None]


@dataclass
class _Fault:
    line: str
    since: float
    told: int  # times
    next_at: float


class Faults:
    """What goes wrong now, by name."""

    def __init__(self, say: Say, monotonic: Callable[[], float]) -> None:
        self._say, self._monotonic = say, monotonic
        self._open: dict[str, _Fault] = {}

    def tell(self, name: str, line: str) -> None:
        """Something goes wrong, still or again."""
        now = self._monotonic()
        if (fault := self._open.get(name)) is None:
            is_known = any(each.line == line for each in self._open.values())
            pause = REMINDERS[0].total_seconds()
            self._open[name] = _Fault(line, now, 0 if is_known else 1, now + pause)
            if not is_known:
                self._say(line)
            return
        fault.line = line
        if fault.told and now >= fault.next_at:
            self._say(f"{line} (for {_span(now - fault.since)} now)")
            pause = REMINDERS[min(fault.told, len(REMINDERS) - 1)].total_seconds()
            fault.told, fault.next_at = fault.told + 1, now + pause

    def over(self, name: str) -> None:
        """It goes well; tells so if it did not, and its owner was told."""
        fault = self._open.pop(name, None)
        if fault is not None and fault.told:
            self._say(f"over after {_span(self._monotonic() - fault.since)}: {fault.line}")

    @contextlib.contextmanager
    def telling(
        self, name: str, about: str, kinds: tuple[type[Exception], ...] = PASSING
    ) -> Iterator[None]:
        """Tell of an error inside, and go on.

        Of a market or a node that is away all who wait for it say the same.
        """
        try:
            yield
        except kinds as error:
            words = "waiting" if isinstance(error, Unavailable) else about
            self.tell(name, f"{words}: {error}")
        else:
            self.over(name)


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


# -------------------------------------------------------------------------------- log and terminal

DETACHED = "TALLYSTICK_PROVIDER_DETACHED"
BEGUN = ("offering at ", "auditing from outside", "waiting: ", "the disk ", "the other agents ")
"""What an agent says once it is past what its owner has to mend."""
BEGIN_SECONDS = 120.0
CLOSED = (
    "the terminal was closed (SIGHUP): the agent ends in order; `provider start --detach` keeps one"
)


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
        text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {printable(line)}"
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
        process, since = start_detached(arguments, log=log, **{DETACHED: "1"})
    except OSError as error:
        raise Unavailable(f"cannot write the log in {home}: {error.strerror}") from error
    ends = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise Refused(tail(log, since=since).strip() or "the agent ended without a word")
        if any(words in tail(log, since=since) for words in BEGUN):
            break
        time.sleep(0.1)
    process.returncode = 0  # it goes on without us: no warning about a child that was left
    return process.pid


# ------------------------------------------------------------------------------------------- sleep

GAP = 10.0  # less is a machine with much to do


class Clocks(NamedTuple):
    """One look at all of them."""

    wall: float
    monotonic: float
    boot: float


def read_clocks() -> Clocks:
    """Now."""
    return Clocks(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))


def interruption(before: Clocks, after: Clocks, waited: float) -> str | None:
    """What came between two looks that are meant to be `waited` apart; None: nothing to tell."""
    ran = after.monotonic - before.monotonic
    slept = after.boot - before.boot - ran
    turned = after.wall - before.wall - (after.boot - before.boot)
    if slept > GAP:
        return f"this machine was asleep for {slept:.0f} s"
    if ran - waited > GAP:
        return f"this agent was stopped for {ran - waited:.0f} s"
    if abs(turned) > GAP:
        way = "forward" if turned > 0 else "back"
        return f"this machine's clock was turned {way} by {abs(turned):.0f} s"
    return None


def aftermath(held: Collection[bytes], live: Collection[bytes]) -> str:
    """What became of the leases that an agent held, as the market says when it is back."""
    kept = len(set(held) & set(live))
    lost = len(held) - kept
    if not held:
        return "no lease was held, and the offer is spoken for again"
    parts = [f"{kept} of {len(held)} leases go on"]
    if lost:
        parts.append(f"{lost} were given to others: what is sealed without its peer is not paid")
    return "; ".join(parts)


# -------------------------------------------------------------------------------------- heartbeats


def heartbeat(session: Session, subject: Digest) -> Heartbeat:
    """Alive now: signed under the session key of an offer, a lease or an auditor."""
    at = UnixMillis(time.time_ns() // 1_000_000)
    signature = session.private_key.sign(heartbeat_digest(subject, at))
    return Heartbeat(at=at, signature=signature)
