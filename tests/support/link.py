"""A wire between two processes: a TCP relay with delay, rate, and a script of what goes wrong.

For machines whose kernel cannot shape traffic. Whoever dials gets `Link.address` instead of the
real one; bytes pass unread, so TLS passes too. TCP hides a lost segment behind a pause of one
retransmission time-out, so that is what a loss is here; a connection that breaks is a `Cut`.

Invariant: what happens depends on the seed and on how many bytes went by, never on how the kernel
cuts the stream; only the clock is real. `Way` decides and is pure, `Link` moves the bytes.
Units: seconds on the loop's clock, bytes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf, log
from typing import TypeAlias

SEGMENT = 1448  # bytes: what a lost packet of an Ethernet carries
_LARGEST_READ = 64 * 1024
_GRAIN = 0.01  # seconds: bytes are held in pieces that take no longer than this to send
_SLACK = 256 * 1024  # bytes that wait for the wire, beside those that are on it
_FAST = 10**9  # bytes per second: what an unlimited rate is taken for when buffers are sized


@dataclass(frozen=True)
class Shape:
    """One direction of a wire."""

    delay: float = 0.0  # seconds, one way
    rate: float = inf  # bytes per second, of all connections together
    burst: int = SEGMENT  # bytes that an idle wire lets through at once
    loss: float = 0.0  # probability of a segment, below 1
    timeout: float = 0.2  # seconds by which a lost segment holds up all that come after it


@dataclass(frozen=True)
class Stall:
    """Nothing arrives for `seconds`, once `after` bytes have gone by in this direction."""

    after: int
    seconds: float


@dataclass(frozen=True)
class Cut:
    """The connection breaks once exactly `after` bytes have gone by in this direction."""

    after: int


Event: TypeAlias = Stall | Cut


@dataclass(frozen=True)
class Passage:
    """Bytes, and when they arrive; or the end of their connection."""

    at: float
    data: bytes = b""
    cut: bool = False


class Way:
    """One direction: when do bytes arrive that are sent now?"""

    def __init__(self, shape: Shape, *, script: Sequence[Event] = (), seed: int = 0) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        self._script = sorted(script, key=lambda event: event.after)
        self._sent_by = -inf  # when the wire has sent all that it was given
        self._floor = -inf  # nothing arrives before this, nor before what was sent before it
        self.passed = 0
        """Bytes that were sent so far."""
        self.losses = 0
        """Segments that were lost so far."""
        self._next_loss = self._draw_loss()

    def _draw_loss(self) -> float:
        """Position of the next lost segment; segments are lost independently of each other."""
        if not self._shape.loss:
            return inf
        ahead = 1 + int(log(1 - self._random.random()) / log(1 - self._shape.loss))
        return (self.passed // SEGMENT + ahead) * SEGMENT

    @property
    def read_size(self) -> int:
        """How many bytes to send at a time."""
        return int(min(max(self._shape.rate * _GRAIN, SEGMENT), _LARGEST_READ))

    @property
    def num_waiting(self) -> int:
        """How many pieces may be on the wire or before it."""
        on_the_wire = min(self._shape.rate, _FAST) * self._shape.delay
        return int((on_the_wire + _SLACK) // self.read_size) + 1

    def send(self, now: float, data: bytes) -> Iterator[Passage]:
        """What becomes of `data`; nothing follows a cut."""
        while data:
            event = self._script[0] if self._script else None
            turn = min(self._next_loss, event.after if event else inf)
            if turn > self.passed:
                piece = data[: int(min(turn - self.passed, len(data)))]
                data = data[len(piece) :]
                yield Passage(self._arrival(now, len(piece)), piece)
            elif event is None or turn < event.after:
                self.losses += 1
                self._hold(now, self._shape.timeout)
                self._next_loss = self._draw_loss()
            else:
                del self._script[0]
                if isinstance(event, Cut):
                    yield Passage(self._arrival(now, 0), cut=True)
                    return
                self._hold(now, event.seconds)

    def end(self, now: float) -> Passage:
        """The sender closed its half."""
        return Passage(self._arrival(now, 0))

    def _arrival(self, now: float, size: int) -> float:
        shape = self._shape
        self._sent_by = max(self._sent_by, now - shape.burst / shape.rate) + size / shape.rate
        self.passed += size
        self._floor = max(self._floor, max(now, self._sent_by) + shape.delay)
        return self._floor

    def _hold(self, now: float, pause: float) -> None:
        self._floor = self._arrival(now, 0) + pause


@dataclass
class Link:
    """A relay that listens at `address`, and dials `target` for each connection it accepts."""

    there: Way = field(default_factory=lambda: Way(Shape()))
    back: Way = field(default_factory=lambda: Way(Shape()))
    target: str = ""
    """`host:port`; may be set later. Without one, connections are closed as soon as they come."""
    address: str = ""

    def __post_init__(self) -> None:
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self) -> None:
        """Break every connection now; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    def stop(self) -> None:
        """Let nothing arrive any more, in either direction, without breaking a connection."""
        self._flows.clear()

    def go_on(self) -> None:
        """Undo `stop`."""
        self._flows.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until both its halves ended, or it broke."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        host, _, port = self.target.rpartition(":")
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port or 0))
            writers.append(far_writer)
            self._writers.update(writers)
            async with asyncio.TaskGroup() as halves:
                halves.create_task(self._relay(self.there, reader, far_writer))
                halves.create_task(self._relay(self.back, far_reader, writer))
        except* OSError:  # refused, reset or cut: both ends see it below
            pass
        finally:
            for end in writers:
                end.transport.abort()
                self._writers.discard(end)

    async def close(self) -> None:
        """Break every connection and wait until nothing of them is left."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _relay(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        wire: asyncio.Queue[Passage] = asyncio.Queue(way.num_waiting)
        async with asyncio.TaskGroup() as ends:
            ends.create_task(_take(way, reader, wire))
            ends.create_task(self._deliver(wire, writer))

    async def _deliver(self, wire: asyncio.Queue[Passage], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        writer.transport.set_write_buffer_limits(high=0)  # drained means given to the kernel
        while True:
            passage = await wire.get()
            await asyncio.sleep(max(0.0, passage.at - clock()))
            await self._flows.wait()
            if passage.cut:
                raise ConnectionAbortedError("the script cuts here")
            if not passage.data:
                writer.write_eof()
                return
            writer.write(passage.data)
            await writer.drain()


async def _take(way: Way, reader: asyncio.StreamReader, wire: asyncio.Queue[Passage]) -> None:
    clock = asyncio.get_running_loop().time
    while data := await reader.read(way.read_size):
        for passage in way.send(clock(), data):
            await wire.put(passage)
            if passage.cut:
                return
    await wire.put(way.end(clock()))


@asynccontextmanager
async def open_link(
    there: Way | None = None, back: Way | None = None, *, target: str = ""
) -> AsyncIterator[Link]:
    """A link on a free port of this machine; closed at the end."""
    link = Link(there or Way(Shape()), back or Way(Shape()), target)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    link.address = f"{host}:{port}"
    try:
        yield link
    finally:
        server.close()
        await link.close()
        await server.wait_closed()
