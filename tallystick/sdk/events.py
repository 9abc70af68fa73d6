"""Server-sent events from a market: read from bytes, and followed over every interruption.

A stream may end at any moment: the market restarts, a proxy gives up, the reader was too slow. What
was seen last is all that is needed to go on, so `followed` comes again behind it, and whoever uses
it sees each event once and in order.
Format: WHATWG HTML, 9.2 Server-sent events; lines end with a line feed, as ours do.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import NamedTuple, TypeVar

from contracts.terms.errors import Malformed, TooLarge, Unavailable

E = TypeVar("E")

MAX_EVENT_BYTES = 2**20
END = "end"
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between tries; the last one repeats

Open = Callable[[int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Opens the stream of events behind a number."""


class ServerSent(NamedTuple):
    """One event as it came."""

    number: int
    kind: str
    data: bytes


async def server_sent(chunks: AsyncIterator[bytes]) -> AsyncGenerator[ServerSent, None]:
    """The events in a stream; comments, and an event that was cut off, are none.

    Raises:
        TooLarge: an event of more than `MAX_EVENT_BYTES`.
        Malformed: an event without a number.
    """
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        while (end := waiting.find(b"\n\n")) >= 0:
            block = bytes(waiting[:end])
            del waiting[: end + 2]
            if (event := _event(block)) is not None:
                yield event
        if len(waiting) > MAX_EVENT_BYTES:
            raise TooLarge("an event that does not end", size=len(waiting), limit=MAX_EVENT_BYTES)


def _event(block: bytes) -> ServerSent | None:
    fields = dict[bytes, bytes]()
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data" and name in fields:
            value = fields[name] + b"\n" + value.removeprefix(b" ")
        fields[name] = value.removeprefix(b" ")
    if b"data" not in fields:
        return None  # a comment, or when to come again
    number = fields.get(b"id", b"")
    if not number.isdigit() or len(number) > 15:
        raise Malformed("an event without a number")
    return ServerSent(int(number), fields.get(b"event", b"").decode(), fields[b"data"])


async def followed(
    open_behind: Open,
    read: Callable[[bytes], E],
    *,
    after: int,
    patience: timedelta | None = None,
) -> AsyncGenerator[tuple[int, E], None]:
    """Events behind number `after` with their numbers, until the one that says that it is the end.

    Args:
        open_behind: Opens the stream.
        read: Makes an event of its data.
        after: The number that was seen last; 0 for all.
        patience: Stop and raise when no stream could be had for so long; None never stops.

    Raises:
        Unavailable: the market does not answer, beyond all patience.
        Refused: it will not, whatever is tried.
    """
    clock = asyncio.get_running_loop().time
    tries, heard_at = 0, clock()
    while True:
        failure = Unavailable("the market ended the stream")
        try:
            async with open_behind(after) as chunks:
                heard_at = clock()
                async for event in server_sent(chunks):
                    tries, heard_at, after = 0, clock(), event.number
                    yield event.number, read(event.data)
                    if event.kind == END:
                        return
        except Unavailable as error:
            failure = error
        pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
        if patience is not None and clock() + pause - heard_at > patience.total_seconds():
            raise failure
        await asyncio.sleep(pause)
        tries += 1
