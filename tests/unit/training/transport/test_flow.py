"""Windows and the outbox: order, bounds, fairness. Coroutines are stepped by hand."""

import weakref
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from training.transport.flow import MAX_URGENT, Outbox, Outgoing


class Tensor(bytearray):
    """A buffer that can be watched."""


def first_result(coroutine: Coroutine[Any, Any, bytes | None]) -> bytes | None:
    """What a coroutine returns that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: bytes | None = stop.value
        return result
    coroutine.close()
    pytest.fail("it waits")


def outbox() -> Outbox:
    """One that must not overflow."""
    return Outbox(on_overflow=lambda: pytest.fail("it overflowed"))


def message(name: str, count: int, sent: list[str]) -> Outgoing:
    """`count` frames, each `name` and a number."""
    frames = iter([b"%s%d" % (name.encode(), number) for number in range(count)])
    return Outgoing(frames, lambda: sent.append(name))


def pieces(tensor: Tensor) -> Iterator[bytes]:
    """Its frames."""
    for at in range(0, 100, 10):
        yield bytes(tensor[at : at + 10])


def drained(box: Outbox, count: int) -> list[bytes | None]:
    """The next frames."""
    return [first_result(box.next()) for _ in range(count)]


def test_outbox__several_messages__one_frame_of_each_in_turn() -> None:
    box, sent = outbox(), list[str]()
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        box.add(message(name, count, sent))

    assert drained(box, 6) == [b"a0", b"b0", b"c0", b"a1", b"c1", b"a2"]
    assert sent == ["b", "c", "a"]


def test_outbox__urgent_frame__goes_first() -> None:
    box = outbox()
    box.add(message("a", 2, []))
    drained(box, 1)

    box.add_urgent(b"now")

    assert drained(box, 2) == [b"now", b"a1"]


@pytest.mark.parametrize("frames_sent", [0, 1])
def test_outbox__dropped_message__nothing_of_it_is_kept(frames_sent: int) -> None:
    box, tensor = outbox(), Tensor(b"a" * 100)
    is_there = weakref.ref(tensor)
    dropped = Outgoing(pieces(tensor))
    box.add(dropped)
    drained(box, frames_sent)
    del tensor

    box.drop(dropped)

    assert is_there() is None


def test_outbox__finished__sends_the_last_words_and_ends() -> None:
    box = outbox()
    box.add(message("a", 2, []))
    box.add_urgent(b"late")

    box.finish(b"bye")

    assert drained(box, 2) == [b"bye", None]


def test_outbox__too_many_urgent_frames__overflows_and_keeps_no_more() -> None:
    overflows: list[None] = []
    box = Outbox(on_overflow=lambda: overflows.append(None))

    for _ in range(MAX_URGENT + 2):
        box.add_urgent(b"x")

    assert len(overflows) == 2
