"""Any transport with faults by script: which call, to whom, the how-manieth, what goes wrong.

The script is data. It names calls that this side makes; each fault hits exactly one occurrence,
counted from 1 per (method, peer), the request or (`OnReply`) its answer; a dial is `DIAL`. Nothing
is random: the same calls meet the same faults. What hit is in `struck`, what has not yet in
`missed`; a test ends with `need_all_struck`: a fault that never lands proves nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

from typing_extensions import Buffer

from contracts.terms import errors
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
)

DIAL = "dial"
"""The method of a dial: it can be dropped or delayed, or begin or end a partition."""


class Fault(Enum):
    """What can go wrong with one message."""

    DROP = auto()
    """It never arrives; the caller waits until the deadline."""
    DUPLICATE = auto()
    """A request arrives twice, one after the other; the second answer is returned."""
    TRUNCATE = auto()
    """The second half of the last tensor, or of the header where there is none, is missing."""
    CORRUPT = auto()
    """One bit in the middle of the last tensor, or of the header, is flipped."""
    PARTITION = auto()
    """From this message on nothing passes between us and this peer, either way, until healed."""


@dataclass(frozen=True)
class Delay:
    """The message leaves later by this much."""

    by: timedelta


@dataclass(frozen=True)
class Partition:
    """As `Fault.PARTITION`, healed after this much."""

    lasts: timedelta


@dataclass(frozen=True)
class Silence:
    """A request from which on the network between us and this peer drops all, and tells nobody."""

    lasts: timedelta


@runtime_checkable
class Silencing(Protocol):
    """A transport whose network can be cut, such as the twin in memory."""

    def silence(self, peer: SessionKey) -> None:
        """Let nothing pass to and from `peer`, without a word."""

    def hear(self, peer: SessionKey) -> None:
        """End that."""


@dataclass(frozen=True)
class OnReply:
    """The request is handled, and `fault` hits the answer, be it an error."""

    fault: Fault | Delay | Partition

    def __post_init__(self) -> None:
        if self.fault is Fault.DUPLICATE:
            raise errors.WrongConfiguration(f"{self.fault} is for requests: a call has one answer")


AnyFault: TypeAlias = Fault | Delay | Partition | Silence | OnReply
When: TypeAlias = tuple[str, SessionKey, int]  # method, peer, occurrence from 1
_PassOn: TypeAlias = Callable[[bytes, Sequence[Buffer]], Awaitable[Reply]]


class FaultyTransport:
    """Satisfies `port.Transport` around another one."""

    def __init__(
        self,
        inner: Transport,
        script: Mapping[When, AnyFault],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience: float | None = None,
    ) -> None:
        """Inject `script` into the calls of `inner`.

        Args:
            inner: The real one, or its twin in memory.
            script: What hits which call.
            sleep: Waits for a delay.
            patience: Seconds after which the deadline of a dropped message is taken to have passed;
                None: its real one.
        """
        self._inner, self._script = inner, dict(script)
        self._sleep, self._patience = sleep, patience
        self._seen: Counter[tuple[str, SessionKey]] = Counter()
        self._cut_off: set[SessionKey] = set()
        self._wrapped: dict[Session, _FaultySession] = {}
        self.struck: list[tuple[When, AnyFault]] = []
        """What hit, in order."""

    @property
    def missed(self) -> dict[When, AnyFault]:
        """What of the script has not hit, or not yet."""
        hit = {when for when, _ in self.struck}
        return {when: fault for when, fault in self._script.items() if when not in hit}

    def need_all_struck(self) -> None:
        """End a test: a fault that never landed proves nothing.

        Raises:
            AssertionError: some did not; says which, and how many such calls there were.
        """
        lines = [
            f"{fault} at the {n}. {method!r} to {peer.hex()[:16]}, of {self._seen[method, peer]}"
            for (method, peer, n), fault in self.missed.items()
        ]
        if lines:
            raise AssertionError("faults that never hit: " + "; ".join(lines))

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
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """See `port.Transport.serve`."""
        return await self._inner.serve(
            _GuardedHandler(self, handler),
            listen=listen,
            on_disconnect=lambda session: on_disconnect(self._unwrap(session)),
        )

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`; what hits it is scripted as `DIAL`."""
        when, fault = self.next_fault(node, DIAL)
        try:
            async with asyncio.timeout(deadline):
                await self.strike_passage(when, fault)
                self.check_passage(node)
                return self._wrap(await self._inner.dial(node, hints, deadline=deadline))
        except TimeoutError:
            message = f"peer {node.hex()[:16]} does not answer"
            raise errors.DeadlineExceeded(message, node=node.hex(), hints=list(hints)) from None

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
            raise errors.PeerUnreachable(f"peer {peer.hex()[:16]}: partitioned", node=peer.hex())

    def next_fault(self, peer: SessionKey, method: str) -> tuple[When, AnyFault | None]:
        """Count this call, and say what is to hit it."""
        self._seen[method, peer] += 1
        when = (method, peer, self._seen[method, peer])
        return when, self._script.get(when)

    def note_struck(self, when: When) -> None:
        """The fault of `when` has had its effect."""
        self.struck.append((when, self._script[when]))

    async def strike_passage(self, when: When, fault: AnyFault | None) -> None:
        """What stops, holds up or frees a message, whatever is in it; TimeoutError: it is lost."""
        _, peer, _ = when
        match fault:
            case Delay(by):
                self.note_struck(when)
                await self._sleep(by.total_seconds())
            case Fault.DROP:
                self.note_struck(when)
                async with asyncio.timeout(self._patience):
                    await asyncio.get_running_loop().create_future()
            case Fault.PARTITION:
                self.note_struck(when)
                self.partition(peer)
            case Partition(lasts):
                self.note_struck(when)
                self.partition(peer)
                asyncio.get_running_loop().call_later(lasts.total_seconds(), self.heal, peer)
            case Silence(lasts):
                self.note_struck(when)
                network = self._network
                network.silence(peer)
                asyncio.get_running_loop().call_later(lasts.total_seconds(), network.hear, peer)

    @property
    def _network(self) -> Silencing:
        if not isinstance(self._inner, Silencing):
            raise errors.WrongConfiguration("the network of this transport cannot be cut")
        return self._inner

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

    async def wait_closed(self) -> errors.TallystickError:
        return await self._inner.wait_closed()

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """See `port.Session.call`; the script decides what becomes of it."""
        pass_on = partial(self._inner.call, method, deadline=deadline, answer_bytes=answer_bytes)
        try:
            async with asyncio.timeout(deadline):
                return await self._call(method, header, tensors, pass_on)
        except TimeoutError:
            node = self.node.hex()
            raise errors.DeadlineExceeded(
                f"{method}: no answer from {node[:16]}", node=node
            ) from None

    async def _call(
        self, method: str, header: bytes, tensors: Sequence[Buffer], pass_on: _PassOn
    ) -> Reply:
        when, fault = self._faults.next_fault(self.node, method)
        await self._faults.strike_passage(when, fault)
        self._faults.check_passage(self.node)
        header, tensors = self._changed(when, fault, header, tensors)
        if fault is Fault.DUPLICATE:
            self._faults.note_struck(when)
            with suppress(errors.TallystickError):
                await pass_on(header, tensors)
        answer = await self._answer(pass_on(header, tensors))
        if isinstance(fault, OnReply):
            await self._faults.strike_passage(when, fault.fault)
            answer = self._changed_answer(when, fault.fault, answer)
        self._faults.check_passage(self.node)
        if isinstance(answer, errors.TallystickError):
            raise answer
        return answer

    @staticmethod
    async def _answer(passed: Awaitable[Reply]) -> Reply | errors.TallystickError:
        """What the peer says, an error included; what this side finds is raised."""
        try:
            return await passed
        except errors.TallystickError as error:
            if "peer" not in error.data:  # nobody reported it
                raise
            return error

    def _changed_answer(
        self, when: When, fault: AnyFault, answer: Reply | errors.TallystickError
    ) -> Reply | errors.TallystickError:
        if isinstance(answer, Reply):
            header, tensors = self._changed(when, fault, answer.header, answer.tensors)
            return Reply(header, tuple(memoryview(tensor) for tensor in tensors))
        if fault in (Fault.TRUNCATE, Fault.CORRUPT):
            self._faults.note_struck(when)
            return errors.Malformed("an error that cannot be read", peer=self.node.hex())
        return answer

    def _changed(
        self, when: When, fault: AnyFault | None, header: bytes, tensors: Sequence[Buffer]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """The message after TRUNCATE or CORRUPT; one without a byte stays as it is."""
        if fault not in (Fault.TRUNCATE, Fault.CORRUPT):
            return header, tensors
        change = _truncated if fault is Fault.TRUNCATE else _corrupted
        *others, last = (header, *tensors)
        data = bytes(byte_view(last))
        if not data:
            return header, tensors
        self._faults.note_struck(when)
        if not tensors:
            return change(header), ()
        return header, [*others[1:], change(data)]


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _corrupted(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
