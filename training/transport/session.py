"""One session: many calls in both directions over one stream of frames.

Invariants:
* every CALL that was started gets exactly one end (a REPLY, or an ABORT of one), and holds its
  place in the peer's bounds until then, whether or not its caller still waits;
* what is half arrived or being handled here never exceeds `Limits`, whatever the peer does;
* the reader never waits for a handler or for room, so replies always get through;
* when the session ends, every pending call raises `PeerUnreachable` and every handler is cancelled.

A frame that breaks the rules ends the session with a REFUSE that says why. Units: bytes, seconds.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Buffer

from contracts.terms.errors import (
    DeadlineExceeded,
    InvariantBroken,
    Malformed,
    Overloaded,
    PeerUnreachable,
    TallystickError,
    TooLarge,
    Unavailable,
)
from contracts.terms.ids import SessionKey
from training.transport.failures import MAX_FAILURE_BYTES, failure_bytes, reported_error
from training.transport.flow import Outbox, Outgoing, Window
from training.transport.framing import (
    MAX_DEADLINE_MS,
    AbortFrame,
    Assembler,
    CallFrame,
    CancelFrame,
    DataFrame,
    Frame,
    RefuseFrame,
    ReplyFrame,
    abort_frame,
    byte_view,
    call_frames,
    cancel_frame,
    read_frame,
    refuse_frame,
    reply_frames,
)
from training.transport.port import Deadline, Handler, Limits, Reply, seconds
from training.transport.wire import AnyMethod, Hello, Methods

log = logging.getLogger(__name__)

_LAST_WORDS = 1.0  # seconds to get a REFUSE out
_WIND_DOWN = 5.0  # seconds for cancelled handlers to end


class FramePipe(Protocol):
    """A stream of frames in both directions; read and written by one task each."""

    async def read(self) -> bytes | None:
        """The next frame; None when the other side has ended. Raises PeerUnreachable."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side is slow. Raises PeerUnreachable."""
        ...

    def close(self) -> None:
        """End both directions; what is written already may still arrive."""
        ...


@dataclass(eq=False)
class _Pending:
    """A call of ours, from its first frame to its end."""

    id: int
    method: AnyMethod
    size: int
    outgoing: Outgoing
    answer: asyncio.Future[Reply]
    failed: bool = False
    reply: Assembler | None = None

    @property
    def abandoned(self) -> bool:
        return self.answer.done()


@dataclass(eq=False)
class _Serving:
    """A call of the peer's: arriving, then handled, then answered."""

    id: int
    method: AnyMethod
    ends_at: float
    request: Assembler
    expiry: asyncio.TimerHandle
    task: asyncio.Task[None] | None = None
    reply: Outgoing | None = None
    reply_size: int = 0


class MuxSession:
    """Satisfies `port.Session` over any `FramePipe`; whoever made it awaits `run`."""

    def __init__(
        self,
        node: SessionKey,
        pipe: FramePipe,
        *,
        handler: Handler,
        methods: Methods,
        limits: Limits,
        theirs: Hello,
    ) -> None:
        self._node, self._pipe, self._handler = node, pipe, handler
        self._methods, self._limits, self._theirs = methods, limits, theirs
        self._outbox = Outbox()
        waiting = limits.max_waiting
        self._calls = Window(
            max_count=theirs.max_calls, max_bytes=theirs.max_call_bytes, max_waiting=waiting
        )
        self._replies = Window(
            max_count=limits.max_calls,
            max_bytes=theirs.max_reply_bytes,
            max_waiting=limits.max_calls,
        )
        self._ids: Iterator[int] = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._serving: dict[int, _Serving] = {}
        self._held_calls = 0  # bytes of the peer's calls
        self._held_replies = 0  # bytes announced by replies that are half arrived
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason: PeerUnreachable | None = None

    # -------------------------------------------------------------------------------- port

    @property
    def node(self) -> SessionKey:
        """See `port.Session`."""
        return self._node

    @property
    def closed(self) -> bool:
        """See `port.Session`."""
        return self._reason is not None or self._stop.is_set()

    async def call(
        self, method: str, header: bytes, tensors: Sequence[Buffer] = (), *, deadline: Deadline
    ) -> Reply:
        """See `port.Session.call`."""
        spec = self._methods.named(method)
        parts = [byte_view(header), *map(byte_view, tensors)]
        size = _checked(parts, spec.max_header_bytes, spec.max_tensors, spec.max_tensor_bytes, spec)
        if size > self._theirs.max_call_bytes:
            raise _too_large(f"{method}: this peer's calls", size, self._theirs.max_call_bytes)
        pending: _Pending | None = None
        span = min(seconds(deadline), MAX_DEADLINE_MS / 1000)
        try:
            async with asyncio.timeout(span) as scope:
                await self._calls.acquire(size)
                pending = self._begin(spec, parts, size, scope.when())
                return await pending.answer
        except TimeoutError:
            raise self._late(spec, started=pending is not None) from None
        finally:
            if pending is not None:
                self._leave(pending)

    def stop(self) -> None:
        """Begin to close, without waiting."""
        self._stop.set()

    async def close(self) -> None:
        """See `port.Session.close`."""
        self.stop()
        await self._ended.wait()

    async def wait_closed(self) -> TallystickError:
        """See `port.Session.wait_closed`."""
        await self._ended.wait()
        assert self._reason is not None
        return self._reason

    # -------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Read and write until either side ends; returns when all is cleaned up."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        stopped = asyncio.create_task(self._stop.wait())
        tasks = (reader, writer, stopped)
        reason = self._unreachable("the session broke off")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = await self._reason_of(reader, writer)
        finally:
            self._end(reason)
            for task in tasks:
                task.cancel()
            self._pipe.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_WIND_DOWN)
            self._ended.set()

    async def _reason_of(
        self, reader: asyncio.Task[None], writer: asyncio.Task[None]
    ) -> PeerUnreachable:
        for task in (reader, writer):
            if task.done() and not task.cancelled() and (error := task.exception()):
                if not isinstance(error, TallystickError):
                    raise error  # a bug of ours: the session ends, and the task's owner hears it
                if task is reader and not isinstance(error, PeerUnreachable):
                    await self._say_why(error, writer)
                return self._unreachable(error.message)
        if self._stop.is_set():
            return self._unreachable("closed here")
        return self._unreachable("closed by the other side")

    async def _say_why(self, error: TallystickError, writer: asyncio.Task[None]) -> None:
        log.warning("session with %s refused: %s", self._node.hex()[:16], error.message)
        self._outbox.finish(refuse_frame(failure_bytes(error)))
        await asyncio.wait({writer}, timeout=_LAST_WORDS)

    def _end(self, reason: PeerUnreachable) -> None:
        self._reason = reason
        self._outbox.finish()
        self._calls.close(self._gone)
        self._replies.close(self._gone)
        for pending in self._pending.values():
            self._fail(pending, self._gone())
        self._pending.clear()
        for serving in self._serving.values():
            serving.expiry.cancel()
        self._serving.clear()
        for task in self._tasks:
            task.cancel()

    def _unreachable(self, why: str) -> PeerUnreachable:
        node = self._node.hex()
        return PeerUnreachable(f"peer {node[:16]}: {why}", node=node)

    def _gone(self) -> TallystickError:
        """Why the session ended, anew for each that hears it."""
        assert self._reason is not None
        return PeerUnreachable(self._reason.message, **self._reason.data)

    def _urgently(self, frame: bytes) -> None:
        try:
            self._outbox.add_urgent(frame)
        except Overloaded as error:  # the peer sends, and reads nothing
            log.warning("session with %s ends: %s", self._node.hex()[:16], error.message)
            self.stop()

    async def _read(self) -> None:
        while (data := await self._pipe.read()) is not None:
            self._receive(read_frame(data))

    async def _write(self) -> None:
        while (frame := await self._outbox.next()) is not None:
            await self._pipe.write(frame)

    def _receive(self, frame: Frame) -> None:
        match frame:
            case CallFrame():
                self._on_call(frame)
            case ReplyFrame():
                self._on_reply(frame)
            case DataFrame(id, True, body):
                self._on_reply_data(id, body)
            case DataFrame(id, False, body):
                self._on_call_data(id, body)
            case CancelFrame(id):
                self._on_cancel(id)
            case AbortFrame(id):
                self._on_abort(id)
            case RefuseFrame(payload):
                error = reported_error(payload, self._node)
                raise self._unreachable(f"it ended the session: {error.message}")
            case _:
                raise Malformed("a second greeting")

    # ---------------------------------------------------------------------------- our calls

    def _begin(
        self, spec: AnyMethod, parts: Sequence[memoryview], size: int, ends_at: float | None
    ) -> _Pending:
        assert ends_at is not None
        loop = asyncio.get_running_loop()
        call = next(self._ids)
        deadline_ms = max(1, int((ends_at - loop.time()) * 1000))
        outgoing = Outgoing(call_frames(call, spec.name, deadline_ms, parts))
        pending = _Pending(call, spec, size, outgoing, loop.create_future())
        self._pending[call] = pending
        self._outbox.add(outgoing)
        return pending

    def _late(self, spec: AnyMethod, *, started: bool) -> TallystickError:
        node = self._node.hex()
        if started:
            return DeadlineExceeded(f"{spec.name}: no answer from {node[:16]}", node=node)
        return Overloaded(f"{spec.name}: no room at {node[:16]} in time", node=node)

    def _leave(self, pending: _Pending) -> None:
        """The caller waits no longer: with an answer, or without one."""
        pending.answer.cancel()
        if pending.id not in self._pending:
            return
        self._outbox.drop(pending.outgoing)
        if not pending.outgoing.started:
            self._settle(pending)
            return
        if pending.reply:
            pending.reply.discard()
        self._urgently(cancel_frame(pending.id))

    def _settle(self, pending: _Pending) -> None:
        """The call has ended on both sides: its place is free."""
        del self._pending[pending.id]
        self._outbox.drop(pending.outgoing)
        if pending.reply:
            self._held_replies -= pending.reply.size
        self._calls.release(pending.size)

    def _on_reply(self, frame: ReplyFrame) -> None:
        pending = self._pending.get(frame.id)
        if pending is None or pending.reply is not None:
            raise Malformed("a reply to no call")
        size = sum(frame.lengths)
        if self._held_replies + size > self._limits.max_reply_bytes:
            raise TooLarge(
                "more replies at once than announced",
                size=self._held_replies + size,
                limit=self._limits.max_reply_bytes,
            )
        if error := self._reply_over_bounds(pending, frame):
            self._fail(pending, error)
        pending.failed = frame.failed
        pending.reply = Assembler(frame.lengths, keep=not pending.abandoned)
        self._held_replies += size
        self._feed_reply(pending, pending.reply, frame.body)

    def _reply_over_bounds(self, pending: _Pending, frame: ReplyFrame) -> TallystickError | None:
        spec = pending.method
        header, *tensors = frame.lengths
        if frame.failed:
            over = header > MAX_FAILURE_BYTES or bool(tensors)
        else:
            over = (
                header > spec.max_reply_header_bytes
                or len(tensors) > spec.max_reply_tensors
                or sum(tensors) > spec.max_reply_tensor_bytes
            )
        if not over:
            return None
        size = sum(frame.lengths)
        return TooLarge(f"{spec.name}: a reply of {size} bytes", size=size, peer=self._node.hex())

    def _fail(self, pending: _Pending, error: TallystickError) -> None:
        if not pending.answer.done():
            pending.answer.set_exception(error)

    def _on_reply_data(self, call: int, body: memoryview) -> None:
        pending = self._pending.get(call)
        if pending is None or pending.reply is None:
            raise Malformed("more of no reply")
        self._feed_reply(pending, pending.reply, body)

    def _feed_reply(self, pending: _Pending, reply: Assembler, body: memoryview) -> None:
        reply.feed(body)
        if not reply.complete:
            return
        self._settle(pending)
        if pending.abandoned:
            return
        header, tensors = reply.take()
        if pending.failed:
            pending.answer.set_exception(reported_error(header, self._node))
        else:
            pending.answer.set_result(Reply(header, tensors))

    def _on_abort(self, call: int) -> None:
        pending = self._pending.get(call)
        if pending is None or pending.reply is None:
            raise Malformed("the end of no reply")
        self._fail(pending, DeadlineExceeded(f"{pending.method.name}: the reply was cut off"))
        self._settle(pending)

    # ------------------------------------------------------------------------ the peer's calls

    def _on_call(self, frame: CallFrame) -> None:
        if frame.id in self._serving:
            raise Malformed("two calls under one number")
        try:
            spec = self._admit(frame)
        except TallystickError as error:
            self._send_failure(frame.id, error)
            return
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + frame.deadline_ms / 1000
        serving = _Serving(
            frame.id,
            spec,
            ends_at,
            Assembler(frame.lengths),
            loop.call_at(ends_at, self._expire, frame.id),
        )
        self._serving[frame.id] = serving
        self._held_calls += serving.request.size
        self._feed_call(serving, frame.body)

    def _admit(self, frame: CallFrame) -> AnyMethod:
        """The method called, if the call is within all bounds; nothing is stored before this."""
        spec = self._methods.named(frame.method)
        header, *tensors = frame.lengths
        _check_sizes(
            header, tensors, spec.max_header_bytes, spec.max_tensors, spec.max_tensor_bytes, spec
        )
        size = self._held_calls + sum(frame.lengths)
        if len(self._serving) >= self._limits.max_calls or size > self._limits.max_call_bytes:
            raise Overloaded(
                f"{len(self._serving)} calls, {self._held_calls} bytes in flight",
                max_calls=self._limits.max_calls,
                max_call_bytes=self._limits.max_call_bytes,
            )
        return spec

    def _on_call_data(self, call: int, body: memoryview) -> None:
        serving = self._serving.get(call)
        if serving is None:
            return  # the rest of a call that was refused or ran out of time
        if serving.request.complete:
            raise Malformed("more of a call than announced")
        self._feed_call(serving, body)

    def _feed_call(self, serving: _Serving, body: memoryview) -> None:
        serving.request.feed(body)
        if serving.request.complete:
            serving.expiry.cancel()
            serving.task = asyncio.create_task(self._serve(serving))
            self._tasks.add(serving.task)
            serving.task.add_done_callback(self._tasks.discard)

    def _expire(self, call: int) -> None:
        """A call did not arrive in its own time."""
        serving = self._serving[call]
        name = serving.method.name
        self._refuse(serving, DeadlineExceeded(f"{name}: did not arrive in its time"))

    def _on_cancel(self, call: int) -> None:
        serving = self._serving.get(call)
        if serving is None:
            return  # answered already
        if serving.reply is not None:
            self._cut_off(serving)
        elif serving.task is not None:
            serving.task.cancel()
        else:
            self._refuse(serving, Unavailable("the caller gave up"))

    async def _serve(self, serving: _Serving) -> None:
        name = serving.method.name
        try:
            async with asyncio.timeout_at(serving.ends_at) as scope:
                parts, size = await self._answer(serving)
                await self._replies.acquire(size)
        except TallystickError as error:
            if isinstance(error, InvariantBroken):
                log.exception("%s: broken invariant", name)
            self._refuse(serving, error)
        except asyncio.CancelledError:
            self._refuse(serving, Unavailable("the caller gave up"))
        except Exception as error:  # entry point of a peer's call: log it all, tell it nothing
            if isinstance(error, TimeoutError) and scope.expired():
                self._refuse(serving, DeadlineExceeded(f"{name}: took too long here"))
                return
            log.exception("%s: unexpected error", name)
            self._refuse(serving, InvariantBroken("an internal error"))
        else:
            self._send_reply(serving, parts, size)

    async def _answer(self, serving: _Serving) -> tuple[list[memoryview], int]:
        spec = serving.method
        header, tensors = serving.request.take()
        header, reply = await self._handler.handle(self._node, spec.name, header, tensors)
        parts = [byte_view(header), *map(byte_view, reply)]
        try:
            size = _checked(
                parts,
                spec.max_reply_header_bytes,
                spec.max_reply_tensors,
                spec.max_reply_tensor_bytes,
                spec,
            )
        except TooLarge as error:
            raise InvariantBroken(f"own reply: {error.message}") from error
        if size > self._theirs.max_reply_bytes:
            raise _too_large(
                f"{spec.name}: the caller's replies", size, self._theirs.max_reply_bytes
            )
        return parts, size

    def _send_reply(self, serving: _Serving, parts: Sequence[memoryview], size: int) -> None:
        if serving.id not in self._serving:
            return  # the session ended
        serving.reply_size = size
        serving.reply = Outgoing(
            reply_frames(serving.id, parts), on_sent=lambda: self._forget(serving)
        )
        self._outbox.add(serving.reply)

    def _cut_off(self, serving: _Serving) -> None:
        """Stop a reply that nobody waits for."""
        assert serving.reply is not None
        if not serving.reply.started:
            self._refuse(serving, Unavailable("the caller gave up"))
            return
        self._outbox.drop(serving.reply)
        self._forget(serving)
        self._urgently(abort_frame(serving.id))

    def _refuse(self, serving: _Serving, error: TallystickError) -> None:
        if serving.id not in self._serving:
            return  # the session ended
        if serving.reply is not None:
            self._outbox.drop(serving.reply)
        self._forget(serving)
        self._send_failure(serving.id, error)

    def _forget(self, serving: _Serving) -> None:
        """The call has ended here: its memory is free."""
        del self._serving[serving.id]
        serving.expiry.cancel()
        self._held_calls -= serving.request.size
        if serving.reply is not None:
            self._replies.release(serving.reply_size)

    def _send_failure(self, call: int, error: TallystickError) -> None:
        for frame in reply_frames(call, [memoryview(failure_bytes(error))], failed=True):
            self._urgently(frame)


def _too_large(what: str, size: int, limit: int) -> TooLarge:
    return TooLarge(f"{what} have {limit} bytes at most, not {size}", size=size, limit=limit)


def _checked(
    parts: Sequence[memoryview],
    max_header: int,
    max_tensors: int,
    max_bytes: int,
    spec: AnyMethod,
) -> int:
    """The bytes of a message that is within the bounds of its method."""
    header, *tensors = map(len, parts)
    _check_sizes(header, tensors, max_header, max_tensors, max_bytes, spec)
    return header + sum(tensors)


def _check_sizes(
    header: int,
    tensors: Sequence[int],
    max_header: int,
    max_tensors: int,
    max_bytes: int,
    spec: AnyMethod,
) -> None:
    if header > max_header:
        raise _too_large(f"{spec.name}: headers", header, max_header)
    if len(tensors) > max_tensors:
        raise TooLarge(
            f"{spec.name}: {len(tensors)} tensors, {max_tensors} at most",
            size=len(tensors),
            limit=max_tensors,
        )
    if sum(tensors) > max_bytes:
        raise _too_large(f"{spec.name}: tensors", sum(tensors), max_bytes)
