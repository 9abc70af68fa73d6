"""Server-sent events: read however the bytes are cut, followed over every interruption."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from contracts.terms.errors import Malformed, ServiceUnreachable, TooLarge
from tallystick.sdk.events import MAX_EVENT_BYTES, ServerSent, followed, server_sent

STREAM = (
    b": events beyond 0\nretry: 1000\n\n"
    b'event: state\ndata: {"a":"\xe2\x80\xa8"}\nid: 1\n\n'
    b": heartbeat\n\n"
    b"event: note\ndata: one\ndata: two\nid: 2\n\n"
    b"event: cut\ndata: off"
)
EVENTS = [
    ServerSent(1, "state", b'{"a":"\xe2\x80\xa8"}'),
    ServerSent(2, "note", b"one\ntwo"),
]


async def whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize("number", [b"", b"id: -1\n", b"id: x\n", b"id: " + b"9" * 16 + b"\n"])
async def test_server_sent__no_number__is_malformed(number: bytes) -> None:
    with pytest.raises(Malformed):
        [event async for event in server_sent(whole(b"data: 1\n" + number + b"\n"))]


async def test_server_sent__event_without_end__is_too_large() -> None:
    with pytest.raises(TooLarge):
        [event async for event in server_sent(whole(b"x" * (MAX_EVENT_BYTES + 1)))]


class Flaky:
    """A market whose streams end after some events; `None`: it does not answer at all."""

    def __init__(self, *lengths: int | None, total: int) -> None:
        self.lengths, self.total = list(lengths), total
        self.asked: list[int] = []

    @asynccontextmanager
    async def open(self, after: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The next stream."""
        self.asked.append(after)
        length = self.lengths.pop(0) if self.lengths else self.total
        if length is None:
            raise ServiceUnreachable("away")
        yield self.stream(after, length)

    async def stream(self, after: int, length: int) -> AsyncIterator[bytes]:
        """Its bytes."""
        last = min(after + length, self.total)
        for number in range(after + 1, last + 1):
            yield b"event: x\ndata: %d\nid: %d\n\n" % (number, number)
        if last == self.total:
            yield b"event: end\ndata: 0\nid: %d\n\n" % last


async def test_followed__streams_that_end__each_event_once_and_in_order() -> None:
    market = Flaky(2, None, 0, 3, total=7)

    found = [each async for each in followed(market.open, int, after=0)]

    assert found == [(number, number) for number in range(1, 8)] + [(7, 0)]
    assert market.asked == [0, 2, 2, 2, 5]


@pytest.mark.simulated_time  # on a slow machine the stream itself may take that long
async def test_followed__market_away_beyond_patience__says_so() -> None:
    market = Flaky(1, None, None, None, None, None, total=9)

    with pytest.raises(ServiceUnreachable):
        [
            each
            async for each in followed(
                market.open, int, after=0, patience=timedelta(milliseconds=100)
            )
        ]
