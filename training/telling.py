"""What a process says it has done, one JSON object a line, and where it may be made to die.

A test that kills a process has to know where it was. So every fact that matters for recovery is
told right after it is on disk, and a failpoint can end or stop the process at exactly that line,
once, without a sleep anywhere. The same lines feed the metrics and the timeline
(`tallystick.watch`), so that there is one account of what happened. Bytes are hexadecimal.

    at          Unix milliseconds, of this machine's clock
    mono        microseconds of this machine's monotonic clock: spans between lines of one process
    process     what kind of process: coordinator, trainer, peer, market
    pid         which one; a restart has another
    event       what has happened
    job         whose, where the process works for one
    peer        whom it is about: in a peer's own lines itself, else another peer
    stage, step, unit, chunk, round, attempt, revision      which, where the event has one
    took_us     microseconds that it took; it ended with this line
    waited_us   microseconds that it waited before that, for its turn or for another process
    cpu_us      microseconds of CPU time that the thread which computes gave it
    times       how often a fault came since its line before
    queue       how many wait for their turn in this process now
    units, loss, members, code, reason and others           as the event says

Losses are 1e-6 nats per token. `bytes_in` and `bytes_out` are those of the process since it began.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from contracts.terms.errors import WrongConfiguration

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Tell(Protocol):
    """Says that something has happened."""

    def __call__(self, event: str, **fields: object) -> None:
        """Tell of `event`; fields are numbers, text, booleans, bytes or None."""
        ...


def tell_nobody(event: str, **fields: object) -> None:
    """The quiet twin."""


def telling_about(tell: Tell, **about: object) -> Tell:
    """Tells the same with these fields beside, such as the job; an event's own fields win."""

    def tell_about(event: str, **fields: object) -> None:
        tell(event, **(about | fields))

    return tell_about


class Rarely:
    """Tells of a fault that lasts once, and then once in a while how often it came (`times`).

    One fault: an event with the same peer, stage, duty, method and code.
    """

    NAMED_BY = ("peer", "stage", "duty", "method", "code")
    MOST = 1000  # faults that are remembered

    def __init__(
        self, tell: Tell, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`every`: seconds between two lines of one fault."""
        self._tell, self._every, self._clock = tell, every, clock
        self._told: dict[tuple[object, ...], tuple[float, int]] = {}  # when; how often since

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        fault = (event, *(fields.get(name) for name in self.NAMED_BY))
        at, times = self._told.pop(fault, (None, 0))
        now = self._clock()
        if at is not None and now < at + self._every:
            self._told[fault] = at, times + 1
            return
        self._told[fault] = now, 0
        if len(self._told) > self.MOST:
            del self._told[next(iter(self._told))]
        self._tell(event, **(fields | {"times": times + 1} if times else fields))


class Span:
    """Measures what events took; made when somebody begins to wait, which `begin` ends."""

    def __init__(self) -> None:
        self._asked = self._began = time.monotonic_ns()

    def begin(self) -> None:
        """The waiting is over, the work begins."""
        self._began = time.monotonic_ns()

    def take_timings(self) -> dict[str, int]:
        """`took_us` and `waited_us` since the last call, or since this was made."""
        now = time.monotonic_ns()
        took, waited = now - self._began, self._began - self._asked
        self._asked = self._began = now
        return {"took_us": took // 1000, "waited_us": waited // 1000}


class JsonLines:
    """Writes each event as a line of JSON, at once."""

    def __init__(self, stream: TextIO, *, process: str) -> None:
        self._stream, self._process = stream, process

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        about = {name: _plain(value) for name, value in fields.items()}
        head = {
            "at": time.time_ns() // 10**6,
            "mono": time.monotonic_ns() // 10**3,
            "process": self._process,
            "pid": os.getpid(),
            "event": event,
        }
        # One write, so that lines of processes that share a file do not mix.
        self._stream.write(json.dumps(head | about) + "\n")
        self._stream.flush()


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes | bytearray) else value


@dataclass(frozen=True)
class Failpoint:
    """At the event of this step the process gets `signal`, once in the life of `folder`."""

    action: str
    event: str
    step: int

    def mark(self, process: str) -> str:
        """Name of the file that says that it has struck this process."""
        return f"{process}-{self.action}-{self.event}-{self.step}.done"


def parse_failpoints(text: str) -> tuple[Failpoint, ...]:
    """Failpoints as `action:event:step`, separated by commas; action is kill or stop.

    Raises:
        WrongConfiguration: the text is something else.
    """
    found = []
    for word in filter(None, text.split(",")):
        match word.strip().split(":"):
            case [("kill" | "stop") as action, event, step] if event and step.isdecimal():
                found.append(Failpoint(action, event, int(step)))
            case _:
                raise WrongConfiguration(
                    f"failpoint {word!r}: wanted kill|stop:event:step, e.g. kill:seal_stored:3"
                )
    return tuple(found)


class Failing:
    """Tells, and then strikes where a failpoint fits; processes that share a folder have names."""

    def __init__(
        self, tell: Tell, failpoints: Iterable[Failpoint], folder: Path, name: str = "failpoint"
    ) -> None:
        self._tell, self._failpoints, self._folder = tell, tuple(failpoints), folder
        self._name = name

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._tell(event, **fields)
        for point in self._failpoints:
            if (point.event, point.step) == (event, fields.get("step")):
                self._strike(point)

    def _strike(self, point: Failpoint) -> None:
        mark = self._folder / point.mark(self._name)
        if mark.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
        self._tell("failpoint", action=point.action, at_event=point.event, step=point.step)
        os.kill(os.getpid(), _SIGNALS[point.action])


class FailpointFile:
    """Tells, and strikes where a file says so, which is read at each event: none, no failpoint.

    A test writes it beside the journals of the process that is to fail, at any time before.
    """

    def __init__(self, tell: Tell, file: Path) -> None:
        self._tell, self._file = tell, file

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        try:
            failpoints = parse_failpoints(self._file.read_text())
        except FileNotFoundError:
            failpoints = ()
        Failing(self._tell, failpoints, self._file.parent, self._file.name)(event, **fields)
