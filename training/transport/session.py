"""One session: many calls in both directions over one stream of frames.

Invariants:
* every call that was started gets exactly one end (`calling`, `serving`);
* what a peer can make this side hold is bounded by `Limits`, whatever it sends;
* the reader never waits for a handler or for room, so replies always get through;
* when the session ends, every pending call raises `PeerUnreachable` and every handler is cancelled;
* a session of which nothing is heard for `Limits.silence` ends as one that the other side resets.

A frame that breaks the rules ends the session with a REFUSE that says why, and nothing else.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

from contracts.terms.errors import Malformed, PeerUnreachable, TallystickError
from contracts.terms.ids import SessionKey
from training.transport.calling import OurCalls
from training.transport.failures import failure_bytes, reported_error
from training.transport.flow import Outbox
from training.transport.framing import (
    BEAT,
    AbortFrame,
    BeatFrame,
    CallFrame,
    CancelFrame,
    DataFrame,
    Frame,
    RefuseFrame,
    ReplyFrame,
    read_frame,
    refuse_frame,
)
from training.transport.port import Deadline, Handler, Limits, Reply
from training.transport.serving import TheirCalls
from training.transport.wire import Hello, Methods

log = logging.getLogger(__name__)

_LAST_WORDS = 1.0  # seconds to get a REFUSE out
_BEATS = 5  # in `Limits.silence`, of a side that says nothing else


class FramePipe(Protocol):
    """A stream of frames in both directions; read and written by one task each."""

    async def read(self) -> bytes | None:
        """The next frame; None when the other side has ended. Raises PeerUnreachable."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side is slow. Raises PeerUnreachable."""

    def close(self) -> None:
        """End both directions; what is written already may still arrive."""


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
        greeting: bytes | None = None,
    ) -> None:
        """`greeting` is a frame that goes out before any other."""
        self.node, self._pipe = node, pipe
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason: PeerUnreachable | None = None
        self._beat_every = limits.silence.total_seconds() / _BEATS
        self._num_read = self._num_written = 0  # frames
        self._outbox = Outbox(on_overflow=self._stop.set)
        if greeting is not None:
            self._outbox.add_urgent(greeting)
        self._ours = OurCalls(node, self._outbox, methods=methods, limits=limits, theirs=theirs)
        self._theirs = TheirCalls(
            node, self._outbox, handler, methods=methods, limits=limits, theirs=theirs
        )

    @property
    def closed(self) -> bool:
        """See `port.Session`."""
        return self._reason is not None or self._stop.is_set()

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """See `port.Session.call`."""
        return await self._ours.call(method, header, tensors, deadline, answer_bytes)

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
        return self._gone()

    async def run(self) -> None:
        """Read and write until either side ends; returns when all is cleaned up."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        watcher = asyncio.create_task(self._watch())
        tasks = (reader, writer, watcher, asyncio.create_task(self._stop.wait()))
        reason = self._unreachable("the session broke off")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = await self._reason_of(reader, writer, watcher)
        finally:
            self._end(reason)
            for task in tasks:
                task.cancel()
            self._pipe.close()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._theirs.wind_down()
            finally:  # gRPC cancels the task that runs this once more when the stream breaks
                self._ended.set()

    async def _reason_of(
        self, reader: asyncio.Task[None], writer: asyncio.Task[None], watcher: asyncio.Task[None]
    ) -> PeerUnreachable:
        for task in (reader, writer, watcher):
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
        log.warning("session with %s refused: %s", self.node.hex()[:16], error.message)
        self._outbox.finish(refuse_frame(failure_bytes(error)))
        await asyncio.wait({writer}, timeout=_LAST_WORDS)

    def _end(self, reason: PeerUnreachable) -> None:
        self._reason = reason
        self._outbox.finish()
        self._ours.end(self._gone)
        self._theirs.end(self._gone)

    def _gone(self) -> PeerUnreachable:
        """Why the session ended, anew for each that hears it."""
        assert self._reason is not None
        return PeerUnreachable(self._reason.message, **self._reason.data)

    def _unreachable(self, why: str) -> PeerUnreachable:
        node = self.node.hex()
        return PeerUnreachable(f"peer {node[:16]}: {why}", node=node)

    async def _read(self) -> None:
        while (data := await self._pipe.read()) is not None:
            self._num_read += 1
            self._receive(read_frame(data))

    async def _write(self) -> None:
        while (frame := await self._outbox.next()) is not None:
            await self._pipe.write(frame)
            self._num_written += 1

    async def _watch(self) -> None:
        """Say that we live; end when the other side does not.

        Rounds without a frame are counted, not seconds: after a pause of our own the first round
        hears what has come meanwhile.

        Raises:
            PeerUnreachable: nothing was heard in `_BEATS` rounds.
        """
        silent = 0
        while silent < _BEATS:
            num_read, num_written = self._num_read, self._num_written
            await asyncio.sleep(self._beat_every)
            if self._num_written == num_written:
                self._outbox.beat(BEAT)
            silent = silent + 1 if self._num_read == num_read else 0
        raise self._unreachable(f"silent for {_BEATS * self._beat_every:.1f} s")

    def _receive(self, frame: Frame) -> None:
        match frame:
            case CallFrame():
                self._theirs.on_call(frame)
            case ReplyFrame():
                self._ours.on_reply(frame)
            case DataFrame(number, True, body):
                self._ours.on_data(number, body)
            case DataFrame(number, False, body):
                self._theirs.on_data(number, body)
            case CancelFrame(number):
                self._theirs.on_cancel(number)
            case AbortFrame(number):
                self._ours.on_abort(number)
            case BeatFrame():
                pass  # it was heard
            case RefuseFrame(payload):
                error = reported_error(payload, self.node)
                raise PeerUnreachable(f"it ended the session: {error.message}")
            case _:
                raise Malformed("a second greeting")
