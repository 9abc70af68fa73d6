"""Any transport with faults by script: which call, to whom, the how-manieth, what goes wrong.

The script names calls that this side makes; each fault hits exactly one occurrence, counted from
1 per (kind, peer). `kind` is the method's name unless `kind_of` reads another from the header, such
as the kind of the message inside. Nothing is random: the same calls meet the same faults. What hit
is recorded in `struck`, so that a test can assert that its fault landed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from types import MappingProxyType
from typing import TypeAlias

from typing_extensions import Buffer

from contracts.terms.errors import DeadlineExceeded, PeerUnreachable, TallystickError
from contracts.terms.ids import SessionKey
from training.transport.framing import byte_view
from training.transport.port import (
    Deadline,
    Handler,
    Reply,
    Session,
    SessionCallback,
    Transport,
    ignore_session,
    seconds,
)


class Fault(Enum):
    """What can go wrong with one call."""

    DROP = auto()
    """The call never arrives; its caller waits until the deadline."""
    DROP_REPLY = auto()
    """The call is handled, its answer never arrives."""
    DUPLICATE = auto()
    """The call arrives twice, one after the other; the second answer is returned."""
    TRUNCATE = auto()
    """The second half of the last tensor, or of the header where there is none, is missing."""
    CORRUPT = auto()
    """One bit in the middle of the last tensor, or of the header, is flipped."""
    PARTITION = auto()
    """From this call on nothing passes between us and this peer, until `heal`."""


@dataclass(frozen=True)
class Delay:
    """The call leaves later by this much."""

    by: timedelta


AnyFault: TypeAlias = Fault | Delay
When: TypeAlias = tuple[str, SessionKey, int]  # kind, peer, occurrence from 1


def _method_name(method: str, _header: bytes) -> str:
    return method


class FaultyTransport:
    """Satisfies `port.Transport` around another one."""

    def __init__(
        self,
        inner: Transport,
        script: Mapping[When, AnyFault],
        *,
        kind_of: Callable[[str, bytes], str] = _method_name,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner, self._script = inner, dict(script)
        self._kind_of, self._sleep = kind_of, sleep
        self._seen: Counter[tuple[str, SessionKey]] = Counter()
        self._cut_off: set[SessionKey] = set()
        self._wrapped: dict[Session, _FaultySession] = {}
        self.struck: list[tuple[When, AnyFault]] = []
        """What hit, in order."""

    @property
    def key(self) -> SessionKey:
        """See `port.Transport.key`."""
        return self._inner.key

    @property
    def sessions(self) -> Mapping[SessionKey, Session]:
        """See `port.Transport.sessions`."""
        sessions = self._inner.sessions.items()
        return MappingProxyType({node: self._wrap(session) for node, session in sessions})

    async def serve(
        self,
        handler: Handler,
        *,
        listen: str | None = None,
        on_connect: SessionCallback = ignore_session,
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """See `port.Transport.serve`."""
        return await self._inner.serve(
            _GuardedHandler(self, handler),
            listen=listen,
            on_connect=lambda session: on_connect(self._wrap(session)),
            on_disconnect=lambda session: on_disconnect(self._unwrap(session)),
        )

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`."""
        self.check_passage(node)
        return self._wrap(await self._inner.dial(node, hints, deadline=deadline))

    def set_members(self, keys: Iterable[SessionKey]) -> None:
        """See `port.Transport.set_members`."""
        self._inner.set_members(keys)

    async def close(self) -> None:
        """See `port.Transport.close`."""
        await self._inner.close()

    def partition(self, peer: SessionKey) -> None:
        """Let nothing pass between us and `peer` from now on."""
        self._cut_off.add(peer)

    def heal(self, peer: SessionKey) -> None:
        """End a partition."""
        self._cut_off.discard(peer)

    def check_passage(self, peer: SessionKey) -> None:
        """Stop what a partition stops.

        Raises:
            PeerUnreachable: `peer` is on the other side of one.
        """
        if peer in self._cut_off:
            raise PeerUnreachable(f"peer {peer.hex()[:16]}: partitioned", node=peer.hex())

    def fault_for(self, peer: SessionKey, method: str, header: bytes) -> AnyFault | None:
        """Count this call, and say what hits it."""
        kind = self._kind_of(method, header)
        self._seen[kind, peer] += 1
        when = (kind, peer, self._seen[kind, peer])
        fault = self._script.get(when)
        if fault is not None:
            self.struck.append((when, fault))
        return fault

    async def sleep(self, duration: timedelta) -> None:
        """Wait on this transport's clock."""
        await self._sleep(duration.total_seconds())

    def _wrap(self, session: Session) -> "_FaultySession":
        if session not in self._wrapped:
            self._wrapped[session] = _FaultySession(self, session)
        return self._wrapped[session]

    def _unwrap(self, session: Session) -> "_FaultySession":
        return self._wrapped.pop(session, None) or _FaultySession(self, session)


class _GuardedHandler:
    """Lets no call through a partition; otherwise the real handler."""

    def __init__(self, faults: FaultyTransport, handler: Handler) -> None:
        self._faults, self._handler = faults, handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        self._faults.check_passage(caller)
        answer = await self._handler.handle(caller, method, header, tensors)
        self._faults.check_passage(caller)
        return answer


class _FaultySession:
    """Satisfies `port.Session` around another one."""

    def __init__(self, faults: FaultyTransport, inner: Session) -> None:
        self._faults, self._inner = faults, inner

    @property
    def node(self) -> SessionKey:
        return self._inner.node

    @property
    def closed(self) -> bool:
        return self._inner.closed

    async def close(self) -> None:
        await self._inner.close()

    async def wait_closed(self) -> TallystickError:
        return await self._inner.wait_closed()

    async def call(
        self, method: str, header: bytes, tensors: Sequence[Buffer] = (), *, deadline: Deadline
    ) -> Reply:
        """See `port.Session.call`; the script decides what becomes of it."""
        fault = self._faults.fault_for(self.node, method, header)
        if fault is Fault.PARTITION:
            self._faults.partition(self.node)
        self._faults.check_passage(self.node)
        try:
            async with asyncio.timeout(seconds(deadline)):
                if isinstance(fault, Delay):
                    await self._faults.sleep(fault.by)
                if fault is Fault.DROP:
                    await _forever()
                if fault in (Fault.TRUNCATE, Fault.CORRUPT):
                    change = _truncated if fault is Fault.TRUNCATE else _corrupted
                    header, tensors = _changed(header, tensors, change)
                if fault is Fault.DUPLICATE:
                    with suppress(TallystickError):
                        await self._inner.call(method, header, tensors, deadline=deadline)
                reply = await self._inner.call(method, header, tensors, deadline=deadline)
                if fault is Fault.DROP_REPLY:
                    await _forever()
        except TimeoutError:
            node = self.node.hex()
            raise DeadlineExceeded(f"{method}: no answer from {node[:16]}", node=node) from None
        self._faults.check_passage(self.node)
        return reply


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


def _changed(
    header: bytes, tensors: Sequence[Buffer], change: Callable[[bytes], bytes]
) -> tuple[bytes, Sequence[Buffer]]:
    if not tensors:
        return change(header), tensors
    *others, last = tensors
    return header, [*others, change(bytes(byte_view(last)))]


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _corrupted(data: bytes) -> bytes:
    middle = len(data) // 2
    return (
        data[:middle] + bytes(byte ^ 1 for byte in data[middle : middle + 1]) + data[middle + 1 :]
    )
