"""What a process says it has done, one JSON object a line.

A test that kills a process has to know where it was. So every fact that matters for recovery is
told right after it is on disk. The same lines feed the metrics and the timeline
(`tallystick.watch`), so that there is one account of what happened. Bytes are hexadecimal.

    at          Unix milliseconds, of this machine's clock
    mono        microseconds of this machine's monotonic clock: spans between lines of one process
    process     what kind of process: coordinator, peer, market
    pid         which one; a restart has another
    event       what has happened
    job         whose, where the process works for one
    peer        whom it is about: in a peer's own lines itself, else another peer
    stage, step, item, bucket, seq, round, attempt      which, where the event has one
    took_us     microseconds that it took; it ended with this line
    waited_us   microseconds that it waited before that, for its turn or for another process
    cpu_us      microseconds of CPU time that the thread which computes gave it
    times       how often a fault came since its line before
    queue       how many wait for their turn in this process now
    items, loss, members, code, reason and others       as the event says

Losses are 1e-6 nats per token. `bytes_in` and `bytes_out` are those of the process since it began.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Tell(Protocol):
    """Says that something has happened."""

    def __call__(self, event: str, **fields: object) -> None:
        """Tell of `event`; fields are numbers, text, booleans, bytes or None."""


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
    EVERY = 60.0  # seconds between two lines of one fault
    MOST = 1000  # faults that are remembered

    def __init__(self, tell: Tell, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._told: dict[tuple[object, ...], tuple[float, int]] = {}  # when; how often since

    def __call__(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        fault = (event, *(fields.get(name) for name in self.NAMED_BY))
        at, times = self._told.pop(fault, (None, 0))
        now = self._clock()
        if at is not None and now < at + self.EVERY:
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
