"""What every transport does alike: greet, admit, keep the book of live sessions.

A transport brings a pipe of frames and the key that the other side has proved; everything after
that happens here, so that the in-memory twin and the real one cannot differ. The dialler greets
first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from contracts.terms.moments import UnixMillis
from training.transport.failures import failure_bytes, reported_error
from training.transport.framing import (
    HelloFrame,
    RefuseFrame,
    hello_frame,
    read_frame,
    refuse_frame,
)
from training.transport.port import (
    Deadline,
    Handler,
    Limits,
    Session,
    SessionCallback,
    Traffic,
    ignore_session,
)
from training.transport.session import FramePipe, MuxSession
from training.transport.wire import KIB, Hello, Methods, check_clock

log = logging.getLogger(__name__)

Clock = Callable[[], UnixMillis]
_MAX_HELLO_BYTES = KIB


def system_clock() -> UnixMillis:
    """This machine's time."""
    return UnixMillis(time.time_ns() // 1_000_000)


class _Counted:
    """Satisfies `session.FramePipe` around another one, and counts what passes."""

    def __init__(self, pipe: FramePipe, traffic: Traffic) -> None:
        self._pipe, self._traffic = pipe, traffic

    async def read(self) -> bytes | None:
        frame = await self._pipe.read()
        self._traffic.bytes_in += len(frame or b"")
        return frame

    async def write(self, frame: bytes) -> None:
        await self._pipe.write(frame)
        self._traffic.bytes_out += len(frame)

    def close(self) -> None:
        self._pipe.close()


class Endpoint:
    """One key's sessions, dialled and accepted: what a transport adds its pipes to."""

    def __init__(
        self, key: SessionKey, methods: Methods, *, limits: Limits | None, clock: Clock
    ) -> None:
        self.key, self.limits = key, limits or Limits()
        self.traffic = Traffic()
        """Of all sessions together."""
        self._methods, self._clock = methods, clock
        self._handler: Handler | None = None
        self._closed = False
        self._members: frozenset[SessionKey] = frozenset()
        self._on_disconnect: SessionCallback = ignore_session
        self._live: dict[SessionKey, list[MuxSession]] = {}
        self._accepted: set[MuxSession] = set()
        self._runners: set[asyncio.Task[None]] = set()
        self._newest: dict[SessionKey, Session] = {}

    @property
    def sessions(self) -> Mapping[SessionKey, Session]:
        """See `port.Transport.sessions`."""
        return MappingProxyType(self._newest)

    def answer_with(self, handler: Handler, on_disconnect: SessionCallback) -> None:
        """Answer with `handler` from now on.

        Raises:
            WrongConfiguration: another one answers already.
        """
        if self._handler is not None:
            raise errors.WrongConfiguration("this transport serves already")
        self._handler = handler
        self._on_disconnect = on_disconnect

    def set_members(self, keys: Iterable[SessionKey]) -> None:
        """See `port.Transport.set_members`."""
        self._members = frozenset(keys)
        for session in self._accepted:
            if session.node not in self._members:
                session.stop()

    async def accept(self, pipe: FramePipe, prove: Callable[[], SessionKey]) -> None:
        """Greet whoever dialled in, and serve the session until it ends.

        Args:
            pipe: The stream of frames.
            prove: Says who the other side is, or raises what it is refused with.
        """
        pipe = _Counted(pipe, self.traffic)
        try:
            async with asyncio.timeout(self.limits.handshake.total_seconds()):
                data = await pipe.read()  # before any refusal, so that it does not overtake
                node = prove()
                if node not in self._members:
                    raise errors.Forbidden(f"{node.hex()[:16]} is no member here", node=node.hex())
                theirs = self._check_hello(data, node)
        except errors.TallystickError as error:
            log.warning("a connection was refused: %s", error.message)
            await self._refuse(pipe, error)
            return
        except TimeoutError:
            log.warning("a connection said nothing")
            pipe.close()
            return
        if self._closed:
            pipe.close()
            return
        # In the book before our greeting leaves: who has dialled can be called back at once.
        session = self._register(pipe, node, theirs, greeting=self._hello())
        self._accepted.add(session)
        await self._run(session)

    async def dial_at(
        self,
        node: SessionKey,
        hints: Sequence[str],
        deadline: Deadline,
        open_pipe: Callable[[str], FramePipe],
    ) -> Session:
        """See `port.Transport.dial`; `open_pipe` begins a stream to one address."""
        name = node.hex()
        failed = [] if hints else ["no address is known"]
        try:
            async with asyncio.timeout(deadline):
                for hint in hints:
                    try:
                        return await self._connect(_Counted(open_pipe(hint), self.traffic), node)
                    except errors.PeerUnreachable as error:
                        failed.append(f"{hint}: {error.message}")
        except TimeoutError:
            message = f"peer {name[:16]} does not answer"
            raise errors.DeadlineExceeded(message, node=name, hints=list(hints)) from None
        message = f"peer {name[:16]} cannot be reached: {'; '.join(failed)}"
        raise errors.PeerUnreachable(message, node=name, hints=list(hints))

    async def _connect(self, pipe: FramePipe, node: SessionKey) -> Session:
        """Greet `node`, and run the session in the background."""
        try:
            self._check_open(node)
            await pipe.write(self._hello())
            theirs = self._check_hello(await pipe.read(), node)
            self._check_open(node)  # else nobody would end the session
        except BaseException:  # whatever it was: the stream must not stay open
            pipe.close()
            raise
        session = self._register(pipe, node, theirs)
        runner = asyncio.create_task(self._run(session), name=f"session {node.hex()[:16]}")
        self._runners.add(runner)
        runner.add_done_callback(self._runner_ended)
        return session

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """Pass a call on to whoever serves now."""
        if self._handler is None:
            raise errors.Unavailable("this peer does not serve yet")
        return await self._handler.handle(caller, method, header, tensors)

    async def close(self) -> None:
        """End all sessions and wait for them; no other one begins."""
        self._closed = True
        everything = [session for sessions in self._live.values() for session in sessions]
        await asyncio.gather(*(session.close() for session in everything))
        if self._runners:
            await asyncio.wait(self._runners)

    def _hello(self) -> bytes:
        limits = self.limits
        hello = Hello(
            key=self.key,
            at=self._clock(),
            max_calls=limits.max_calls,
            max_call_bytes=limits.max_call_bytes,
            max_reply_bytes=limits.max_reply_bytes,
        )
        return hello_frame(hello.encoded())

    def _check_open(self, node: SessionKey) -> None:
        if self._closed:
            raise errors.PeerUnreachable("this side has closed", node=node.hex())

    def _check_hello(self, data: bytes | None, node: SessionKey) -> Hello:
        if data is None:
            raise errors.PeerUnreachable(
                f"peer {node.hex()[:16]}: ended the connection", node=node.hex()
            )
        match read_frame(data):
            case HelloFrame(payload):
                hello = Hello.decoded(payload, max_bytes=_MAX_HELLO_BYTES)
            case RefuseFrame(payload):
                raise reported_error(payload, node)
            case _:
                raise errors.Malformed("no greeting")
        if hello.key != node:
            raise errors.Forbidden(f"{node.hex()[:16]} greets under another name")
        check_clock(hello.at, self._clock())
        return hello

    async def _refuse(self, pipe: FramePipe, error: errors.TallystickError) -> None:
        try:
            await pipe.write(refuse_frame(failure_bytes(error)))
        except errors.PeerUnreachable:
            log.debug("the refused side had left")
        pipe.close()

    def _register(
        self, pipe: FramePipe, node: SessionKey, theirs: Hello, greeting: bytes | None = None
    ) -> MuxSession:
        session = MuxSession(
            node,
            pipe,
            handler=self,
            methods=self._methods,
            limits=self.limits,
            theirs=theirs,
            greeting=greeting,
        )
        live = self._live.setdefault(node, [])
        live.append(session)
        self._newest[node] = session
        for old in live[: -self.limits.max_sessions_per_peer]:
            old.stop()
        return session

    async def _run(self, session: MuxSession) -> None:
        try:
            await session.run()
        finally:
            self._remove(session)
            self._on_disconnect(session)

    def _remove(self, session: MuxSession) -> None:
        self._accepted.discard(session)
        live = self._live[session.node]
        live.remove(session)
        if live:
            self._newest[session.node] = live[-1]
        else:
            del self._live[session.node], self._newest[session.node]

    def _runner_ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and (error := runner.exception()):
            log.error("%s broke", runner.get_name(), exc_info=error)
