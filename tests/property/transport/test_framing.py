"""For all inputs: frames carry exactly what was put in, and any bytes are a frame or refused."""

import itertools
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.errors import Malformed
from tests.support.frames import assembled
from training.transport.framing import Assembler, CallFrame, call_frames, read_frame


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_frames__of_a_call__carry_its_buffers(parts: list[bytes]) -> None:
    frames = list(call_frames(7, "a.method", 1234, [memoryview(part) for part in parts]))

    first = read_frame(frames[0])

    assert isinstance(first, CallFrame)
    assert (first.id, first.method, first.deadline_ms) == (7, "a.method", 1234)
    assert assembled(frames) == (parts[0], parts[1:])


@given(st.binary(max_size=80))
def test_read_frame__any_bytes__frame_or_malformed(data: bytes) -> None:
    with suppress(Malformed):
        read_frame(data)


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.lists(st.integers(0, 45)))
def test_assembler__fed_in_any_pieces__gives_the_same(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(parts)
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    assembler = Assembler([len(part) for part in parts])

    for start, stop in itertools.pairwise(bounds):
        assert not assembler.complete
        assembler.feed(memoryview(whole)[start:stop])

    assert assembler.complete
    header, tensors = assembler.take()
    assert [header, *map(bytes, tensors)] == parts
    assert not any(tensor.readonly for tensor in tensors)
