"""What the frames of one call or reply carry."""

from collections.abc import Sequence

from training.transport.framing import Assembler, CallFrame, DataFrame, ReplyFrame, read_frame


def assembled(frames: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Header and tensors."""
    first, *rest = map(read_frame, frames)
    assert isinstance(first, CallFrame | ReplyFrame)
    assembler = Assembler(first.lengths)
    assembler.feed(first.body)
    for frame in rest:
        assert isinstance(frame, DataFrame)
        assembler.feed(frame.body)
    assert assembler.complete
    header, tensors = assembler.take()
    return header, [bytes(tensor) for tensor in tensors]
