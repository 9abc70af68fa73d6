"""Calls to a peer that nobody can dial, through one that both sides have a session with.

A peer behind NAT is reached over its session with the coordinator (docs/architecture.md 3).
The coordinator passes a call on as its own, and the answer back: bytes that are bound by digests
need no more trust than that. Request and answer travel as tensors, the inner header first.

Invariants:
- only the methods given are passed on, for whom `authorize` lets them: nothing is relayed twice;
- answers that are here at any moment have at most `max_bytes` together, those for one caller
  `max_bytes_per_caller`, counted until the last byte has left; further calls wait in order;
- the caller's deadline holds at every hop.
"""

import asyncio
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from training.transport.failures import failure_bytes, reported_error
from training.transport.flow import Window
from training.transport.framing import byte_view
from training.transport.port import MIB, Deadline, Reply, Session
from training.transport.wire import (
    MAX_ANSWER_BYTES,
    MAX_DEADLINE_MS,
    RELAY,
    Answered,
    AnyMethod,
    Methods,
    Passed,
    PassedBack,
    Question,
    ask,
)

Authorize: TypeAlias = Callable[[SessionKey, SessionKey, AnyMethod], None]


@dataclass(frozen=True)
class RelayLimits:
    """What may be under way through one relay at once."""

    max_calls: int = 64
    max_bytes: int = 1024 * MIB
    max_calls_per_caller: int = 8
    max_bytes_per_caller: int = 256 * MIB
    longest: float = 300.0
    """Seconds that a call may keep its room; who says more is given this."""
    max_waiting: int = 256
    """Calls that may wait for room, of all and of each caller; the next is `Overloaded`."""


class Relay:
    """Passes calls on; its owner serves `RELAY` with it."""

    def __init__(
        self,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        methods: Methods,
        authorize: Authorize,
        limits: RelayLimits | None = None,
    ) -> None:
        """Pass `methods` on over whatever `sessions` there are.

        Args:
            sessions: Live sessions by peer, `Transport.sessions` now.
            methods: What may be asked through us.
            authorize: Raises `Forbidden` unless (caller, target, method) is allowed.
            limits: See `RelayLimits`.
        """
        self._sessions, self._methods, self._authorize = sessions, methods, authorize
        self.bytes_passed = 0  # of tensors and headers, there and back
        self._limits = limits = limits or RelayLimits()
        self._room = Window(
            max_count=limits.max_calls, max_bytes=limits.max_bytes, max_waiting=limits.max_waiting
        )
        self._room_of: dict[SessionKey, Window] = defaultdict(
            lambda: Window(
                max_count=limits.max_calls_per_caller,
                max_bytes=limits.max_bytes_per_caller,
                max_waiting=limits.max_waiting,
            )
        )

    async def serve(self, asked: Question[Passed]) -> Answered[PassedBack]:
        """Pass one call on; see `dispatch.Dispatcher.on`.

        Raises:
            Forbidden: the method is not passed on, or not for this caller to this target.
            PeerUnreachable: the target has no session with us.
            Overloaded: too many wait already. TooLarge: the answer is, or could never fit here.
        """
        request, tensors = asked.request, asked.tensors
        wait = min(request.milliseconds / 1000, self._limits.longest)
        ends_at = asyncio.get_running_loop().time() + wait
        if request.method not in self._methods:
            raise errors.Forbidden(f"{request.method!r} is not passed on")
        self._authorize(asked.caller, request.to, self._methods[request.method])
        if not tensors:
            raise errors.Malformed("a call without its header")
        async with self._room_for(asked.caller, request.max_bytes) as release:
            answer, parts = await self._pass_on(request, tensors, ends_at)
            return answer, _Counted(parts, release)

    async def _pass_on(
        self, request: Passed, tensors: tuple[memoryview, ...], ends_at: float
    ) -> tuple[PassedBack, list[Buffer]]:
        session = self._sessions().get(request.to)
        if session is None or session.closed:
            node = request.to.hex()
            raise errors.PeerUnreachable(f"peer {node[:16]} has no session here", node=node)
        self.bytes_passed += sum(tensor.nbytes for tensor in tensors)
        header, *rest = tensors
        left = ends_at - asyncio.get_running_loop().time()
        try:
            reply = await session.call(
                request.method,
                bytes(header),
                rest,
                deadline=left,
                answer_bytes=request.max_bytes,
            )
        except errors.TallystickError as error:
            if "peer" not in error.data:  # nobody reported it: it happened here
                raise
            return PassedBack(failed=True), [failure_bytes(error)]
        self.bytes_passed += len(reply.header) + sum(each.nbytes for each in reply.tensors)
        return PassedBack(failed=False), [reply.header, *reply.tensors]

    @asynccontextmanager
    async def _room_for(self, caller: SessionKey, size: int) -> AsyncIterator[Callable[[], None]]:
        """Room for an answer; freed at once on an error, else by whoever has the answer."""
        if size > self._limits.max_bytes_per_caller:
            limit = self._limits.max_bytes_per_caller
            raise errors.TooLarge(f"an answer of up to {size} bytes", size=size, limit=limit)
        own = self._room_of[caller]
        await own.acquire(size)
        try:
            await self._room.acquire(size)
        except BaseException:  # cancelled, or too many wait
            own.release(size)
            raise

        def release() -> None:
            self._room.release(size)
            own.release(size)

        try:
            yield release
        except BaseException:  # there is no answer
            release()
            raise


class _Counted(list[Buffer]):
    """Buffers whose room is freed when nothing refers to them any more.

    The serving side keeps this list until the call has ended, however it ends; so the room is what
    the memory is, and there is no way to forget it.
    """

    def __init__(self, parts: list[Buffer], release: Callable[[], None]) -> None:
        super().__init__(parts)
        weakref.finalize(self, _soon, asyncio.get_running_loop(), release).atexit = False


def _soon(loop: asyncio.AbstractEventLoop, release: Callable[[], None]) -> None:
    """A collector may run in any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(release)


class RelayedSession:
    """Satisfies `port.Session`: calls to `node` over a session with a relay.

    It lives as long as that session, and may be made for a single call. `answer_bytes` is how long
    an answer may be: the relay keeps that much room, so a caller who knows less asks for less.
    """

    def __init__(
        self,
        node: SessionKey,
        through: Session,
        methods: Methods,
        *,
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.node, self._through, self._methods = node, through, methods
        self._answer_bytes = answer_bytes

    @property
    def closed(self) -> bool:
        """See `port.Session`; that `node` is reached no more shows at the next call."""
        return self._through.closed

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """See `port.Session.call`; also `Forbidden` when the relay does not pass it on."""
        spec = self._methods.named(method)
        spec.check_request([len(header), *(byte_view(tensor).nbytes for tensor in tensors)])
        wait = min(deadline, MAX_DEADLINE_MS / 1000)
        if wait <= 0:
            raise errors.DeadlineExceeded(f"{method}: no time was left", node=self.node.hex())
        longest = spec.max_reply_header_bytes + spec.max_reply_tensor_bytes
        wanted = longest if answer_bytes is None else answer_bytes
        request = Passed(
            to=self.node,
            method=method,
            milliseconds=max(1, int(wait * 1000)),
            max_bytes=min(longest, wanted, self._answer_bytes),
        )
        answer, parts = await ask(self._through, RELAY, request, [header, *tensors], deadline=wait)
        if not parts or (answer.failed and len(parts) > 1):
            raise errors.Malformed(
                "a relayed answer without its header", peer=self._through.node.hex()
            )
        if answer.failed:
            raise reported_error(bytes(parts[0]), self.node)
        spec.check_reply([part.nbytes for part in parts])
        return Reply(bytes(parts[0]), parts[1:])

    async def close(self) -> None:
        """Nothing of ours to close: the session with the relay serves others too."""

    async def wait_closed(self) -> errors.TallystickError:
        """See `port.Session.wait_closed`."""
        return await self._through.wait_closed()
