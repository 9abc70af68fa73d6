"""Frames: what goes in comes out, in frames of bounded size, and nothing else is accepted."""

import pytest

from contracts.terms.errors import Malformed
from tests.support.frames import assembled
from training.transport.framing import (
    MAX_FRAME_BYTES,
    AbortFrame,
    Assembler,
    CancelFrame,
    HelloFrame,
    Kind,
    RefuseFrame,
    ReplyFrame,
    abort_frame,
    cancel_frame,
    hello_frame,
    read_frame,
    refuse_frame,
    reply_frames,
)


def test_frames__of_a_large_reply__are_full_but_for_the_last() -> None:
    parts = [b"head", bytes(range(256)) * 5000, b"", b"x" * (MAX_FRAME_BYTES + 1)]

    frames = list(reply_frames(7, [memoryview(part) for part in parts]))

    assert {len(frame) for frame in frames[:-1]} == {MAX_FRAME_BYTES}
    assert len(frames) == 3
    assert assembled(frames) == (parts[0], parts[1:])


def test_frames__without_calls__carry_what_they_say() -> None:
    assert read_frame(hello_frame(b"hi")) == HelloFrame(b"hi")
    assert read_frame(refuse_frame(b"no")) == RefuseFrame(b"no")
    assert read_frame(cancel_frame(2**64 - 1)) == CancelFrame(2**64 - 1)
    assert read_frame(abort_frame(3)) == AbortFrame(3)
    [failed] = reply_frames(3, [memoryview(b"why")], failed=True)
    assert read_frame(failed) == ReplyFrame(3, True, (3,), memoryview(b"why"))


FIXED = bytes(7) + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(MAX_FRAME_BYTES + 1),
        bytes([99]) + FIXED,
        bytes([Kind.CALL]) + FIXED[:-1],
        bytes([Kind.CALL]) + FIXED,
        bytes([Kind.CALL, 9, 0, 0, 0, 0, 0, 1]) + bytes(8) + bytes(4) + b"short",
        bytes([Kind.CALL, 1, 0, 0, 0, 0, 0, 1]) + bytes(8) + bytes(4) + b"\xff",
        bytes([Kind.CALL, 1, 0, 0, 0, 0, 0, 0]) + bytes(8) + bytes(4) + b"m",
        bytes([Kind.CALL, 1, 0, 0, 255, 0, 0, 0]) + bytes(8) + bytes(4) + b"m",
        bytes([Kind.CALL, 0, 255, 255, 0, 0, 0, 1]) + bytes(8) + bytes(4 + 8 * 65535),
        bytes([Kind.REPLY, 2, 0, 0, 0, 0, 0, 0]) + bytes(8) + bytes(4),
        bytes([Kind.REPLY, 0, 0, 0, 0, 0, 0, 1]) + bytes(8) + bytes(4),
        bytes([Kind.REPLY, 0, 0, 9, 0, 0, 0, 0]) + bytes(8) + bytes(4),
        bytes([Kind.DATA]) + FIXED,
        bytes([Kind.DATA, 0, 0, 1, 0, 0, 0, 0]) + bytes(8) + b"x",
        bytes([Kind.CANCEL]) + FIXED + b"x",
        bytes([Kind.CANCEL, 1]) + FIXED[1:],
        bytes([Kind.ABORT]) + FIXED + b"x",
    ],
)
def test_read_frame__anything_else__malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_frame(data)


def test_assembler__huge_announcement__holds_only_what_arrives() -> None:
    assembler = Assembler([10, 2**63, 2**64 - 1])

    assembler.feed(memoryview(b"few"))

    assert not assembler.complete
