"""Transport inside one process: same frames, bounds and errors as the real one, no sockets.

The twin for tests and for a swarm in memory. Only the pipe differs: frames are handed over (as
fresh bytes, so nobody shares a buffer) through short queues that wait when full. Who is who is told
rather than proved: a dial succeeds at the address of exactly that key, for members only.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from contracts.terms.errors import PeerUnreachable, WrongConfiguration
from contracts.terms.ids import SessionKey
from training.transport.endpoint import Clock, Endpoint, system_clock
from training.transport.port import (
    Deadline,
    Handler,
    Limits,
    Session,
    SessionCallback,
    ignore_session,
)
from training.transport.wire import Methods

_QUEUED_FRAMES = 4


class _OneWay:
    """One direction of a pipe; after `end` its reader still gets what was written.

    While the network between its ends is cut, its reader gets nothing and hears of no end, as over
    TCP: what was written waits, unless the writer gives up meanwhile.
    """

    def __init__(self, is_cut: Callable[[], bool]) -> None:
        self._is_cut = is_cut
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, frame: bytes) -> None:
        while len(self._frames) >= _QUEUED_FRAMES and (self._is_cut() or not self._ended):
            await self._change()
        if self._ended and not self._is_cut():
            raise PeerUnreachable("the stream has ended")
        self._frames.append(frame)
        self._changed.set()

    async def get(self) -> bytes | None:
        while self._is_cut() or not (self._frames or self._ended):
            await self._change()
        if not self._frames:
            return None
        self._changed.set()
        return self._frames.popleft()

    def end(self) -> None:
        self._ended = True
        if self._is_cut():
            self._frames.clear()
        self._changed.set()

    def look(self) -> None:
        """The network has changed."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class MemoryPipe:
    """One end of a stream of frames; satisfies `session.FramePipe`."""

    def __init__(self, inward: _OneWay, outward: _OneWay) -> None:
        self._inward, self._outward = inward, outward

    async def read(self) -> bytes | None:
        """See `session.FramePipe`."""
        return await self._inward.get()

    async def write(self, frame: bytes) -> None:
        """See `session.FramePipe`."""
        await self._outward.put(frame)

    def close(self) -> None:
        """See `session.FramePipe`."""
        self._outward.end()
        self._inward.end()


class MemoryNetwork:
    """The addresses of one process; `memory:0` asks for a free one."""

    def __init__(self) -> None:
        self._listening: dict[str, MemoryTransport] = {}
        self._ports = itertools.count(1)
        self._cut: set[frozenset[SessionKey]] = set()  # pairs that hear nothing of each other
        self._ways: WeakSet[_OneWay] = WeakSet()

    def silence(self, side: Iterable[SessionKey], other: Iterable[SessionKey]) -> None:
        """Let nothing pass between two sides, and tell neither: no stream ends by that."""
        others = tuple(other)
        self._cut |= {frozenset((a, b)) for a in side for b in others}
        self._look()

    def hear(self, side: Iterable[SessionKey], other: Iterable[SessionKey]) -> None:
        """End a silence; what both have not given up meanwhile arrives."""
        others = tuple(other)
        self._cut -= {frozenset((a, b)) for a in side for b in others}
        self._look()

    def _look(self) -> None:
        for way in self._ways:
            way.look()

    def pipes(self, caller: SessionKey, called: SessionKey) -> tuple[MemoryPipe, MemoryPipe]:
        """Both ends of a stream between these two."""
        pair = frozenset((caller, called))
        there, back = (_OneWay(lambda: pair in self._cut) for _ in range(2))
        self._ways.update((there, back))
        return MemoryPipe(back, there), MemoryPipe(there, back)

    def bind(self, address: str, transport: "MemoryTransport") -> str:
        """Reach `transport` at `address` from now on.

        Raises:
            WrongConfiguration: the address is taken or malformed.
        """
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 2**16):
            raise WrongConfiguration(f"{address[:100]!r} is no host:port", address=address[:100])
        bound = f"{host}:{next(self._ports)}" if int(port) == 0 else address
        if bound in self._listening:
            raise WrongConfiguration(f"cannot listen on {bound}: taken", address=bound)
        self._listening[bound] = transport
        return bound

    def find(self, address: str) -> "MemoryTransport | None":
        """Who listens at `address`."""
        return self._listening.get(address)

    def release(self, transport: "MemoryTransport") -> None:
        """Reach `transport` no more."""
        self._listening = {a: t for a, t in self._listening.items() if t is not transport}


class MemoryTransport(Endpoint):
    """Satisfies `port.Transport` inside one event loop."""

    def __init__(
        self,
        network: MemoryNetwork,
        key: SessionKey,
        methods: Methods,
        *,
        limits: Limits | None = None,
        clock: Clock = system_clock,
    ) -> None:
        super().__init__(key, methods, limits=limits, clock=clock)
        self._network = network
        self._accepting: set[asyncio.Task[None]] = set()

    async def serve(
        self,
        handler: Handler,
        *,
        listen: str | None = None,
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """See `port.Transport.serve`."""
        address = None if listen is None else self._network.bind(listen, self)
        self.answer_with(handler, on_disconnect)
        return address

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`."""
        return await self.dial_at(node, hints, deadline, lambda hint: self._open(node, hint))

    async def close(self) -> None:
        """See `port.Transport.close`."""
        self._network.release(self)
        await super().close()
        for task in list(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    def trusts(self, key: SessionKey) -> bool:
        """What TLS would say to `key` at the door."""
        return key in self._members or key == self.key

    def _open(self, node: SessionKey, hint: str) -> MemoryPipe:
        there = self._network.find(hint)
        if there is None or there.key != node or not there.trusts(self.key):
            raise PeerUnreachable("nobody there proves this key and accepts ours")
        return there.open_pipe(self.key)

    def silence(self, peer: SessionKey) -> None:
        """See `MemoryNetwork.silence`."""
        self._network.silence([self.key], [peer])

    def hear(self, peer: SessionKey) -> None:
        """See `MemoryNetwork.hear`."""
        self._network.hear([self.key], [peer])

    def open_pipe(self, caller: SessionKey) -> MemoryPipe:
        """The dialling end of a new stream from `caller`, whom the network vouches for."""
        dialled, accepted = self._network.pipes(caller, self.key)
        task = asyncio.create_task(self.accept(accepted, lambda: caller))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        return dialled
