"""Who may send next, and how much: the two queues of a session.

`Window` bounds what is in flight and makes the rest wait in order of arrival; `Outbox` gives every
message in turn one frame, so that a small call never waits for the end of a large one. Neither
touches a stream. Units: bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from contracts.terms.errors import Overloaded, TallystickError

MAX_URGENT = 4096  # frames; a peer that reads none of them is cut off


class Window:
    """At most `max_count` messages of `max_bytes` together; first come, first served."""

    def __init__(self, *, max_count: int, max_bytes: int, max_waiting: int) -> None:
        self._count, self._bytes = max_count, max_bytes  # what is free
        self._max_waiting = max_waiting
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed: Callable[[], TallystickError] | None = None

    async def acquire(self, size: int) -> None:
        """Wait for room for one message of `size` bytes, which must be within `max_bytes`.

        Raises:
            Overloaded: too many wait already. TallystickError: what `close` was given makes it.
        """
        if self._closed:
            raise self._closed()
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        if len(self._waiting) >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} calls wait already", limit=self._max_waiting)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            self._give_up(size, granted)
            raise

    def release(self, size: int) -> None:
        """A message of `size` bytes is no longer in flight."""
        self._count += 1
        self._bytes += size
        self._grant()

    def close(self, make_error: Callable[[], TallystickError]) -> None:
        """Whoever waits or comes later gets an error of his own."""
        self._closed = make_error
        for _, granted in self._waiting:
            if not granted.done():
                granted.set_exception(make_error())
        self._waiting.clear()

    def _fits(self, size: int) -> bool:
        return self._count > 0 and size <= self._bytes

    def _take(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._take(size)
                granted.set_result(None)

    def _give_up(self, size: int, granted: asyncio.Future[None]) -> None:
        """The task was cancelled, perhaps just after room was granted to it."""
        if granted.cancelled():
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not granted)
            self._grant()
        elif granted.exception() is None:
            self.release(size)


def _nothing() -> None:
    """The default of `Outgoing.on_sent`."""


@dataclass(eq=False)
class Outgoing:
    """A call or reply on its way out, in at least one frame.

    `on_sent` runs when its last frame goes out: before it is written, because the other side may
    have read it, and acted on it, before this side hears that it was written.
    """

    frames: Iterator[bytes]
    on_sent: Callable[[], None] = _nothing
    started: bool = field(default=False, init=False)
    _ahead: bytes | None = field(default=None, init=False)

    def take(self) -> tuple[bytes, bool]:
        """The next frame, and whether it is the last."""
        frame = self._ahead or next(self.frames)
        self._ahead = next(self.frames, None)
        self.started = True
        return frame, self._ahead is None

    def let_go(self) -> None:
        """Free its buffers: the other side may never end the call that it belongs to."""
        self.frames, self._ahead = iter(()), None


class Outbox:
    """Frames to send: urgent ones first, then one of each message in turn."""

    def __init__(self, *, on_overflow: Callable[[], None]) -> None:
        """`on_overflow` runs when the other side leaves `MAX_URGENT` frames unread."""
        self._on_overflow = on_overflow
        self._urgent: deque[bytes] = deque()
        self._messages: deque[Outgoing] = deque()
        self._ready = asyncio.Event()
        self._finished = False

    def add(self, message: Outgoing) -> None:
        """Send all frames of `message`."""
        self._messages.append(message)
        self._ready.set()

    def add_urgent(self, frame: bytes) -> None:
        """Send this frame before any other."""
        if len(self._urgent) >= MAX_URGENT:
            self._on_overflow()
            return
        self._urgent.append(frame)
        self._ready.set()

    def beat(self, frame: bytes) -> None:
        """Send this frame unless another urgent one waits."""
        if not self._urgent:
            self.add_urgent(frame)

    def drop(self, message: Outgoing) -> None:
        """Send no further frame of `message`, and keep none of it; its `on_sent` does not run."""
        if message in self._messages:
            self._messages.remove(message)
        message.let_go()

    def finish(self, last: bytes | None = None) -> None:
        """Send `last`, if given, and nothing after it."""
        self._messages.clear()
        self._urgent.clear()
        if last is not None:
            self._urgent.append(last)
        self._finished = True
        self._ready.set()

    async def next(self) -> bytes | None:
        """The next frame, as soon as there is one; None after the last."""
        while True:
            if self._urgent:
                return self._urgent.popleft()
            if self._messages:
                return self._next_of_messages()
            if self._finished:
                return None
            self._ready.clear()
            await self._ready.wait()

    def _next_of_messages(self) -> bytes:
        message = self._messages.popleft()
        frame, last = message.take()
        if last:
            message.on_sent()
        else:
            self._messages.append(message)
        return frame
