"""A peer's calls on one session: admitted or refused, collected, handled, answered.

Every call gets exactly one end: a REPLY, or an ABORT when its reply was cut off. A call is refused
on its first frame, before anything of it is stored; what is collected and handled never exceeds the
`Limits` that this side announced. A call that does not arrive, or is not answered, within the
deadline that it carries is cancelled. Units: bytes, seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from training.transport.failures import failure_bytes
from training.transport.flow import Outbox, Outgoing, Window
from training.transport.framing import Assembler, CallFrame, abort_frame, byte_view, reply_frames
from training.transport.port import MIB, Handler, Limits
from training.transport.wire import AnyMethod, Hello, Methods

log = logging.getLogger(__name__)

_WIND_DOWN = 5.0  # seconds for cancelled handlers to end
_LARGE = 4 * MIB  # a method may answer more than this: few of its replies are made at once


@dataclass(eq=False)
class _Call:
    """One call: arriving (no task), handled (a task), answered (a reply)."""

    id: int
    method: AnyMethod
    ends_at: float  # of the event loop's clock
    request: Assembler
    expiry: asyncio.TimerHandle
    task: asyncio.Task[None] | None = None
    reply: Outgoing | None = None
    reply_size: int = 0
    has_place: bool = False
    """One of those for large replies."""
    lent: Sequence[Buffer] = ()
    """What the handler returned, kept for as long as it is read."""

    def let_go(self) -> None:
        """Free the reply now, not when a collector finds that it and the call name each other."""
        self.reply, self.lent = None, ()


class TheirCalls:
    """Calls from `node`, answered by a handler."""

    def __init__(
        self,
        node: SessionKey,
        outbox: Outbox,
        handler: Handler,
        *,
        methods: Methods,
        limits: Limits,
        theirs: Hello,
    ) -> None:
        self._node, self._outbox, self._handler = node, outbox, handler
        self._methods, self._limits = methods, limits
        # What they have announced bounds their memory; ours is not for them to decide.
        self._most_bytes = min(theirs.max_reply_bytes, limits.max_unsent_bytes)
        self._room = Window(  # for replies that are on their way
            max_count=limits.max_calls,
            max_bytes=self._most_bytes,
            max_waiting=limits.max_calls,
        )
        self._places = asyncio.Semaphore(limits.max_large_replies)
        self._open: dict[int, _Call] = {}
        self._held = 0  # bytes of open calls
        self._tasks: set[asyncio.Task[None]] = set()

    def on_call(self, frame: CallFrame) -> None:
        """A call begins.

        Raises:
            Malformed: under the number of another one, or longer than announced.
        """
        if frame.id in self._open:
            raise errors.Malformed("two calls under one number")
        try:
            spec = self._admit(frame)
        except errors.TallystickError as error:
            self._send_failure(frame.id, error)
            return
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + frame.deadline_ms / 1000
        expiry = loop.call_at(ends_at, self._expire, frame.id)
        call = _Call(frame.id, spec, ends_at, Assembler(frame.lengths), expiry)
        self._open[frame.id] = call
        self._held += call.request.size
        self._feed(call, frame.body)

    def on_data(self, number: int, body: memoryview) -> None:
        """More of a call; of none means that it was refused or ran out of time.

        Raises:
            Malformed: more than was announced.
        """
        call = self._open.get(number)
        if call is None:
            return
        if call.request.complete:
            raise errors.Malformed("more of a call than announced")
        self._feed(call, body)

    def on_cancel(self, number: int) -> None:
        """The caller gave up; of none means that it was answered already."""
        call = self._open.get(number)
        if call is None:
            return
        if call.reply is not None and call.reply.started:
            self._outbox.drop(call.reply)
            self._forget(call)
            self._outbox.add_urgent(abort_frame(number))
        elif call.task is not None and not call.task.done():
            call.task.cancel()
        else:
            self._refuse(call, errors.Unavailable("the caller gave up"))

    def end(self, make_error: Callable[[], errors.TallystickError]) -> None:
        """The session is over: every handler is cancelled."""
        self._room.close(make_error)
        for call in self._open.values():
            call.expiry.cancel()
            call.let_go()
        self._open.clear()
        for task in self._tasks:
            task.cancel()

    async def wind_down(self) -> None:
        """Wait for cancelled handlers, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_WIND_DOWN)

    def _admit(self, frame: CallFrame) -> AnyMethod:
        """The method called, if the call is within all bounds."""
        spec = self._methods.named(frame.method)
        spec.check_request(frame.lengths)
        size = self._held + sum(frame.lengths)
        if len(self._open) >= self._limits.max_calls or size > self._limits.max_call_bytes:
            raise errors.Overloaded(
                f"{len(self._open)} calls, {self._held} bytes in flight",
                max_calls=self._limits.max_calls,
                max_call_bytes=self._limits.max_call_bytes,
            )
        return spec

    def _feed(self, call: _Call, body: memoryview) -> None:
        call.request.feed(body)
        if call.request.complete:
            call.expiry.cancel()
            call.task = asyncio.create_task(self._serve(call))
            self._tasks.add(call.task)
            call.task.add_done_callback(lambda task: self._served(call, task))

    def _expire(self, number: int) -> None:
        call = self._open[number]
        self._refuse(
            call, errors.DeadlineExceeded(f"{call.method.name}: did not arrive in its time")
        )

    async def _serve(self, call: _Call) -> None:
        name = call.method.name
        try:
            async with asyncio.timeout_at(call.ends_at) as scope:
                if call.method.max_reply_tensor_bytes > _LARGE:
                    await self._places.acquire()
                    call.has_place = True
                parts = await self._answer(call)
                size = sum(len(part) for part in parts)
                await self._room.acquire(size)
        except errors.TallystickError as error:
            if isinstance(error, errors.InvariantBroken):
                log.exception("%s: broken invariant", name)
            self._refuse(call, error)
        except Exception as error:  # entry point of a peer's call: log it all, tell it nothing
            if isinstance(error, TimeoutError) and scope.expired():
                self._refuse(call, errors.DeadlineExceeded(f"{name}: took too long here"))
                return
            log.exception("%s: unexpected error", name)
            self._refuse(call, errors.InvariantBroken("an internal error"))
        else:
            self._reply(call, parts, size)

    def _served(self, call: _Call, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # perhaps before its first step
            self._refuse(call, errors.Unavailable("the caller gave up"))

    async def _answer(self, call: _Call) -> list[memoryview]:
        spec = call.method
        header, tensors = call.request.take()
        header, reply = await self._handler.handle(self._node, spec.name, header, tensors)
        call.lent = reply
        parts = [byte_view(header), *map(byte_view, reply)]
        lengths = [len(part) for part in parts]
        try:
            spec.check_reply(lengths)
        except errors.TooLarge as error:
            raise errors.InvariantBroken(f"own handler: {error.message}") from error
        size, limit = sum(lengths), self._most_bytes
        if size > limit:
            raise errors.TooLarge(f"{spec.name}: a reply of {size} bytes", size=size, limit=limit)
        return parts

    def _reply(self, call: _Call, parts: Sequence[memoryview], size: int) -> None:
        if call.id not in self._open:
            return  # the session ended
        call.reply_size = size
        call.reply = Outgoing(reply_frames(call.id, parts), lambda: self._forget(call))
        self._outbox.add(call.reply)

    def _refuse(self, call: _Call, error: errors.TallystickError) -> None:
        if call.id not in self._open:
            return  # the session ended
        if call.reply is not None:
            self._outbox.drop(call.reply)
        self._forget(call)
        self._send_failure(call.id, error)

    def _forget(self, call: _Call) -> None:
        """The call has ended here: its memory and its place are free."""
        del self._open[call.id]
        call.expiry.cancel()
        self._held -= call.request.size
        if call.reply is not None:
            self._room.release(call.reply_size)
        if call.has_place:
            self._places.release()
        call.let_go()

    def _send_failure(self, number: int, error: errors.TallystickError) -> None:
        for frame in reply_frames(number, [memoryview(failure_bytes(error))], failed=True):
            self._outbox.add_urgent(frame)
