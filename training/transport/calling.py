"""Our calls on one session: from the wait for room to the reply.

A call that was started holds its place in the peer's bounds until the peer ends it, with a REPLY or
with the ABORT of one, whether or not its caller still waits: so an honest peer never sees more than
it announced. A caller that leaves early says CANCEL; what still comes for it is counted and thrown
away. Units: bytes, seconds.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from training.transport.failures import MAX_FAILURE_BYTES, reported_error
from training.transport.flow import Outbox, Outgoing, Window
from training.transport.framing import Assembler, ReplyFrame, byte_view, call_frames, cancel_frame
from training.transport.port import Deadline, Limits, Reply
from training.transport.wire import MAX_DEADLINE_MS, AnyMethod, Hello, Methods


@dataclass(eq=False)
class _Call:
    """One call, from its first frame to its end."""

    id: int
    method: AnyMethod
    size: int
    outgoing: Outgoing
    answer: asyncio.Future[Reply]
    most: int | None  # bytes of the reply that are wanted
    failed: bool = False
    reply: Assembler | None = None

    @property
    def abandoned(self) -> bool:
        return self.answer.done()

    def fail(self, error: errors.TallystickError) -> None:
        if not self.abandoned:
            self.answer.set_exception(error)


class OurCalls:
    """Calls to `node`, and the replies to them."""

    def __init__(
        self, node: SessionKey, outbox: Outbox, *, methods: Methods, limits: Limits, theirs: Hello
    ) -> None:
        self._node, self._outbox, self._methods = node, outbox, methods
        self._limits, self._theirs = limits, theirs
        self._room = Window(
            max_count=theirs.max_calls,
            max_bytes=theirs.max_call_bytes,
            max_waiting=limits.max_waiting,
        )
        self._ids: Iterator[int] = itertools.count(1)
        self._started: dict[int, _Call] = {}
        self._arriving = 0  # bytes that replies on their way have announced

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer],
        deadline: Deadline,
        answer_bytes: int | None,
    ) -> Reply:
        """See `port.Session.call`."""
        spec = self._methods.named(method)
        parts = [byte_view(header), *map(byte_view, tensors)]
        size = self._checked(spec, parts)
        call: _Call | None = None
        try:
            async with asyncio.timeout(min(deadline, MAX_DEADLINE_MS / 1000)) as scope:
                await self._room.acquire(size)
                call = self._begin(spec, parts, size, scope.when(), answer_bytes)
                return await call.answer
        except TimeoutError:
            raise self._late(spec, started=call is not None) from None
        finally:
            if call is not None:
                self._leave(call)

    def on_reply(self, frame: ReplyFrame) -> None:
        """A reply begins.

        Raises:
            Malformed: to no call. TooLarge: beyond what this side announced.
        """
        call = self._started.get(frame.id)
        if call is None or call.reply is not None:
            raise errors.Malformed("a reply to no call")
        self._arriving += sum(frame.lengths)
        if self._arriving > self._limits.max_reply_bytes:
            limit = self._limits.max_reply_bytes
            raise errors.TooLarge("more replies than announced", size=self._arriving, limit=limit)
        self._check_reply(call, frame)
        call.failed = frame.failed
        call.reply = Assembler(frame.lengths, keep=not call.abandoned)
        self._feed(call, call.reply, frame.body)

    def on_data(self, number: int, body: memoryview) -> None:
        """More of a reply.

        Raises:
            Malformed: of none, or more than was announced.
        """
        call = self._started.get(number)
        if call is None or call.reply is None:
            raise errors.Malformed("more of no reply")
        self._feed(call, call.reply, body)

    def on_abort(self, number: int) -> None:
        """The rest of a reply will not come.

        Raises:
            Malformed: of none.
        """
        call = self._started.get(number)
        if call is None or call.reply is None:
            raise errors.Malformed("the end of no reply")
        call.fail(errors.DeadlineExceeded(f"{call.method.name}: the reply was cut off"))
        self._settle(call)

    def end(self, make_error: Callable[[], errors.TallystickError]) -> None:
        """The session is over: every call fails, now and later."""
        self._room.close(make_error)
        for call in self._started.values():
            call.fail(make_error())
        self._started.clear()

    def _checked(self, spec: AnyMethod, parts: Sequence[memoryview]) -> int:
        lengths = [len(part) for part in parts]
        spec.check_request(lengths)
        size, limit = sum(lengths), self._theirs.max_call_bytes
        if size > limit:
            raise errors.TooLarge(
                f"{spec.name}: {size} bytes for this peer", size=size, limit=limit
            )
        return size

    def _begin(
        self,
        spec: AnyMethod,
        parts: Sequence[memoryview],
        size: int,
        ends_at: float | None,
        answer_bytes: int | None,
    ) -> _Call:
        assert ends_at is not None
        loop = asyncio.get_running_loop()
        number = next(self._ids)
        deadline_ms = max(1, int((ends_at - loop.time()) * 1000))
        outgoing = Outgoing(call_frames(number, spec.name, deadline_ms, parts))
        call = _Call(number, spec, size, outgoing, loop.create_future(), answer_bytes)
        self._started[number] = call
        self._outbox.add(outgoing)
        return call

    def _late(self, spec: AnyMethod, *, started: bool) -> errors.TallystickError:
        node = self._node.hex()
        if started:
            return errors.DeadlineExceeded(f"{spec.name}: no answer from {node[:16]}", node=node)
        return errors.Overloaded(f"{spec.name}: no room at {node[:16]} in time", node=node)

    def _leave(self, call: _Call) -> None:
        """The caller waits no longer: it has its answer, or gave up."""
        call.answer.cancel()
        if call.id not in self._started:
            return
        if not call.outgoing.started:
            self._settle(call)
            return
        self._outbox.drop(call.outgoing)
        if call.reply:
            call.reply.discard()
        self._outbox.add_urgent(cancel_frame(call.id))

    def _settle(self, call: _Call) -> None:
        """The call has ended on both sides: its place is free."""
        del self._started[call.id]
        self._outbox.drop(call.outgoing)
        if call.reply:
            self._arriving -= call.reply.size
        self._room.release(call.size)

    def _check_reply(self, call: _Call, frame: ReplyFrame) -> None:
        """A reply over its method's bounds fails its call, and only that."""
        try:
            if not frame.failed:
                call.method.check_reply(frame.lengths)
                size = sum(frame.lengths)
                if call.most is not None and size > call.most:
                    message = f"{call.method.name}: an answer larger than wanted"
                    raise errors.TooLarge(message, size=size, limit=call.most)
            elif frame.lengths[0] > MAX_FAILURE_BYTES or len(frame.lengths) > 1:
                raise errors.TooLarge(f"{call.method.name}: an error of {sum(frame.lengths)} bytes")
        except errors.TooLarge as error:
            call.fail(errors.TooLarge(error.message, **error.data, peer=self._node.hex()))

    def _feed(self, call: _Call, reply: Assembler, body: memoryview) -> None:
        reply.feed(body)
        if not reply.complete:
            return
        self._settle(call)
        if call.abandoned:
            return
        header, tensors = reply.take()
        if call.failed:
            call.fail(reported_error(header, self._node))
        else:
            call.answer.set_result(Reply(header, tensors))
