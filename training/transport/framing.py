"""How calls become frames on one stream, and frames calls again. Pure: bytes in, bytes out.

A frame is at most `MAX_FRAME_BYTES`, so that many calls interleave on one stream. The first frame
of a call or reply tells all lengths; its buffers follow, header first, cut wherever a frame is
full. Nothing is allocated from an announced length: memory grows with what arrives. All integers
are big-endian; `id` is chosen by the caller's side and is free again after the reply.

    HELLO   kind u8 | message                                 first frame of either side
    REFUSE  kind u8 | failure                                 last frame: why this side ends
    CALL    kind u8 | name u8 | tensors u16 | deadline u32 ms | id u64 | header u32
            | lengths u64 each | name | body
    REPLY   kind u8 | failed u8 | tensors u16 | 0 u32 | id u64 | header u32
            | lengths u64 each | body
    DATA    kind u8 | of reply u8 | 0 u16 | 0 u32 | id u64 | body
    CANCEL  kind u8 | 0 u8 | 0 u16 | 0 u32 | id u64           the caller gave up
    ABORT   kind u8 | 0 u8 | 0 u16 | 0 u32 | id u64           the rest of a reply will not come
    BEAT    kind u8                                           this side lives and has nothing to say
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from typing_extensions import Buffer

from contracts.terms.errors import Malformed
from training.transport.wire import MAX_DEADLINE_MS, MAX_TENSORS

MAX_FRAME_BYTES = 2**20 + 2**16  # a MiB of tensor, and what says so

_FIXED = struct.Struct("!BBHIQ")
_HEADER_LENGTH = struct.Struct("!I")


class Kind(IntEnum):
    """The first byte of a frame."""

    HELLO = 1
    REFUSE = 2
    CALL = 3
    REPLY = 4
    DATA = 5
    CANCEL = 6
    ABORT = 7
    BEAT = 8


@dataclass(frozen=True)
class HelloFrame:
    """An encoded `wire.Hello`."""

    payload: bytes


@dataclass(frozen=True)
class RefuseFrame:
    """An encoded `failures.Failure`."""

    payload: bytes


@dataclass(frozen=True)
class CallFrame:
    """A call begins; `body` is as much of its buffers as fitted."""

    id: int
    method: str
    deadline_ms: int
    lengths: tuple[int, ...]  # header first, then each tensor
    body: memoryview


@dataclass(frozen=True)
class ReplyFrame:
    """A reply begins; a failed one has a `failures.Failure` for header."""

    id: int
    failed: bool
    lengths: tuple[int, ...]
    body: memoryview


@dataclass(frozen=True)
class DataFrame:
    """More of a call or reply."""

    id: int
    of_reply: bool
    body: memoryview


@dataclass(frozen=True)
class CancelFrame:
    """The caller gave up this call of its own."""

    id: int


@dataclass(frozen=True)
class AbortFrame:
    """The reply that began will not end."""

    id: int


@dataclass(frozen=True)
class BeatFrame:
    """The other side lives."""


Frame: TypeAlias = (
    HelloFrame
    | RefuseFrame
    | CallFrame
    | ReplyFrame
    | DataFrame
    | CancelFrame
    | AbortFrame
    | BeatFrame
)


def byte_view(buffer: Buffer) -> memoryview:
    """The bytes of any contiguous buffer, without a copy.

    Raises:
        TypeError: not contiguous.
    """
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


# ------------------------------------------------------------------------------------ to frames


def hello_frame(payload: bytes) -> bytes:
    """The first frame of a side."""
    return bytes([Kind.HELLO]) + payload


def refuse_frame(payload: bytes) -> bytes:
    """The last frame of a side."""
    return bytes([Kind.REFUSE]) + payload


def cancel_frame(call: int) -> bytes:
    """The caller gives up."""
    return _FIXED.pack(Kind.CANCEL, 0, 0, 0, call)


def abort_frame(call: int) -> bytes:
    """The reply ends early."""
    return _FIXED.pack(Kind.ABORT, 0, 0, 0, call)


BEAT = bytes([Kind.BEAT])
"""The whole frame."""


def call_frames(
    call: int, method: str, deadline_ms: int, parts: Sequence[memoryview]
) -> Iterator[bytes]:
    """The frames of a call; `parts` are the header and each tensor."""
    name = method.encode("ascii")
    fixed = _FIXED.pack(Kind.CALL, len(name), len(parts) - 1, deadline_ms, call)
    return _frames(fixed + _lengths(parts) + name, _data_prefix(call, of_reply=False), parts)


def reply_frames(
    call: int, parts: Sequence[memoryview], *, failed: bool = False
) -> Iterator[bytes]:
    """The frames of a reply; `parts` are the header and each tensor."""
    fixed = _FIXED.pack(Kind.REPLY, failed, len(parts) - 1, 0, call)
    return _frames(fixed + _lengths(parts), _data_prefix(call, of_reply=True), parts)


def _lengths(parts: Sequence[memoryview]) -> bytes:
    tensors = struct.pack(f"!{len(parts) - 1}Q", *(len(part) for part in parts[1:]))
    return _HEADER_LENGTH.pack(len(parts[0])) + tensors


def _data_prefix(call: int, *, of_reply: bool) -> bytes:
    return _FIXED.pack(Kind.DATA, of_reply, 0, 0, call)


def _frames(first: bytes, prefix: bytes, parts: Sequence[memoryview]) -> Iterator[bytes]:
    pieces: list[Buffer] = [first]
    room = MAX_FRAME_BYTES - len(first)
    for part in parts:
        start = 0
        while start < len(part):
            if not room:
                yield b"".join(pieces)
                pieces, room = [prefix], MAX_FRAME_BYTES - len(prefix)
            piece = part[start : start + room]
            pieces.append(piece)
            start += len(piece)
            room -= len(piece)
    yield b"".join(pieces)


# ---------------------------------------------------------------------------------- from frames


def read_frame(data: bytes) -> Frame:
    """The frame that `data` spells.

    Raises:
        Malformed: it spells none, or is larger than `MAX_FRAME_BYTES`.
    """
    if not 0 < len(data) <= MAX_FRAME_BYTES:
        raise Malformed(f"a frame of {len(data)} bytes")
    if data[0] == Kind.HELLO:
        return HelloFrame(data[1:])
    if data[0] == Kind.REFUSE:
        return RefuseFrame(data[1:])
    if data == BEAT:
        return BeatFrame()
    return _read_numbered(data)


def _read_numbered(data: bytes) -> Frame:
    if len(data) < _FIXED.size:
        raise Malformed(f"a frame of {len(data)} bytes")
    kind, small, count, wide, call = _FIXED.unpack_from(data)
    rest = memoryview(data)[_FIXED.size :]
    if kind == Kind.CALL:
        return _read_call(call, small, count, wide, rest)
    flag = kind in (Kind.REPLY, Kind.DATA)
    if wide or small > flag or (count and kind != Kind.REPLY):
        raise Malformed("a frame with an unknown field")
    if kind == Kind.REPLY:
        lengths, body = _read_lengths(count, rest)
        return ReplyFrame(call, bool(small), lengths, body)
    if kind == Kind.DATA and rest:
        return DataFrame(call, bool(small), rest)
    if kind == Kind.CANCEL and not rest:
        return CancelFrame(call)
    if kind == Kind.ABORT and not rest:
        return AbortFrame(call)
    raise Malformed(f"a frame of kind {kind} with {len(rest)} bytes")


def _read_call(call: int, name: int, count: int, deadline_ms: int, rest: memoryview) -> CallFrame:
    lengths, rest = _read_lengths(count, rest)
    method = bytes(rest[:name])
    if len(method) < name or not method.isascii():
        raise Malformed("a call without a method name")
    if not 0 < deadline_ms <= MAX_DEADLINE_MS:
        raise Malformed(f"a deadline of {deadline_ms} ms")
    return CallFrame(call, method.decode("ascii"), deadline_ms, lengths, rest[name:])


def _read_lengths(count: int, rest: memoryview) -> tuple[tuple[int, ...], memoryview]:
    size = _HEADER_LENGTH.size + 8 * count
    if count > MAX_TENSORS or len(rest) < size:
        raise Malformed(f"{count} tensors announced")
    return struct.unpack_from(f"!I{count}Q", rest), rest[size:]


class Assembler:
    """Collects the buffers of one call or reply, each in memory of its own.

    With `keep=False` it only counts, so that an unwanted reply can end without being stored.
    """

    def __init__(self, lengths: Sequence[int], *, keep: bool = True) -> None:
        self.size = sum(lengths)
        self._missing = self.size
        self._lengths = lengths
        self._parts = [bytearray() for _ in lengths] if keep else []
        self._filling = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return self._missing == 0

    def feed(self, body: memoryview) -> None:
        """Take the next bytes.

        Raises:
            Malformed: more than was announced.
        """
        if len(body) > self._missing:
            raise Malformed(f"{len(body)} bytes where {self._missing} were announced")
        self._missing -= len(body)
        while body and self._parts:
            part = self._parts[self._filling]
            room = self._lengths[self._filling] - len(part)
            part += body[:room]
            body = body[room:]
            self._filling += not self._lengths[self._filling] - len(part)

    def discard(self) -> None:
        """Store nothing from now on."""
        self._parts = []

    def take(self) -> tuple[bytes, tuple[memoryview, ...]]:
        """Header and tensors of a complete message; each tensor is writable."""
        header, *tensors = self._parts
        return bytes(header), tuple(memoryview(tensor) for tensor in tensors)
