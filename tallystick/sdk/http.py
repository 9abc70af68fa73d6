"""What the client stands upon: URLs, signed requests, event streams, and blobs as files.

How a request is signed: see `market.bodies.signing`. The market's clock counts, so that a machine
whose own is off can still speak: its network view says what it is, and this machine's monotonic
clock goes on from there.

A stream of server-sent events may end at any moment: the market restarts, a proxy gives up, the
reader was too slow. What was seen last is all that is needed to go on, so `followed` comes again
behind it, and whoever uses it sees each event once and in order.
Format: WHATWG HTML, 9.2 Server-sent events; lines end with a line feed, as ours do.

Blobs go a piece at a time: evidence may have gigabytes, and a program not the memory. Whoever calls
this gets an `OSError` that names the file if it cannot be read or written.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from contracts.keys.wallet import Session, Wallet
from contracts.terms.digest import BlobHasher
from contracts.terms.errors import Malformed, TooLarge, Unavailable, WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain
from market.bodies.market import NetworkView
from market.bodies.signing import SignedCall, request_digest

# ------------------------------------------------------------------------ URLs and signed requests

MAX_URL = 2048


def http_url(text: str, what: str) -> str:
    """`text` without a slash at its end.

    Args:
        text: What a person wrote, or another program sent.
        what: Of what it should be the URL, for the error.

    Raises:
        Malformed: another scheme, no host, no port number, too long.
    """
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        fits = fits and parts.port != 0 and len(text) <= MAX_URL and text.isprintable()
    except ValueError:
        fits = False
    if not fits or " " in text:
        raise Malformed(
            f"{text!r:.80} is no URL of {what}: it has to look like http://127.0.0.1:8420"
        )
    return text.rstrip("/")


Signer = Wallet | Session


@dataclass(frozen=True)
class MarketClock:
    """Where signatures hold, and what time it is there."""

    domain: Domain
    ahead: int  # ms, of the monotonic clock

    @classmethod
    def of(cls, network: NetworkView) -> Self:
        """The clock of the market that has just answered."""
        domain = Domain(network.chain_id, network.contracts.escrow)
        return cls(domain, network.clock - time.monotonic_ns() // 10**6)

    def now(self) -> UnixMillis:
        """By the market's clock."""
        return UnixMillis(self.ahead + time.monotonic_ns() // 10**6)


def signed_by(
    by: Signer,
    domain: Domain,
    method: str,
    target: str,
    body: Digest,
    at: UnixMillis,
    *,
    key: str = "",
) -> str:
    """The value of `Authorization`; arguments as of `request_digest`."""
    said = request_digest(domain, method, target, key, body, at)
    if isinstance(by, Wallet):
        return SignedCall(by.account, at, body, by.sign_digest(said)).header()
    return SignedCall(by.key, at, body, by.private_key.sign(said)).header()


# ----------------------------------------------------------------------------------- event streams

E = TypeVar("E")

MAX_EVENT_BYTES = 2**20
END = "end"
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between tries; the last one repeats

Open = Callable[[int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Opens the stream of events behind a number."""


class ServerSent(NamedTuple):
    """One event as it came."""

    number: int
    kind: str
    data: bytes


class Numbered(NamedTuple, Generic[E]):
    """An event and where it stands: go on after this number."""

    number: int
    event: E


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
) -> AsyncGenerator[Numbered[E], None]:
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
                    yield Numbered(event.number, read(event.data))
                    if event.kind == END:
                        return
        except Unavailable as error:
            failure = error
        pause = PAUSES[min(tries, len(PAUSES) - 1)]
        if patience is not None and clock() + pause - heard_at > patience.total_seconds():
            raise failure
        await asyncio.sleep(pause)
        tries += 1


# ---------------------------------------------------------------------------------- blobs as files

PIECE = 2**20  # bytes


def measured(path: Path) -> tuple[int, Digest]:
    """Size of a file, and the name of the blob that it is."""
    hasher, size = BlobHasher(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            hasher.update(piece)
            size += len(piece)
    return size, hasher.digest()


async def pieces(path: Path) -> AsyncIterator[bytes]:
    """The bytes of a file; other tasks go on while the disk works."""
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


@contextlib.contextmanager
def written(path: Path, name: Digest, *, max_bytes: int) -> Iterator[Callable[[bytes], None]]:
    """Yields what appends to a file, which is there in the end if it is the blob `name`.

    Raises:
        TooLarge: more than `max_bytes`. WrongBytes: they have another name.
    """
    draft, hasher, size = path.parent / f".{path.name}.{secrets.token_hex(4)}", BlobHasher(), 0

    def append(piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        if size > max_bytes:
            raise TooLarge(f"blob {name.hex()}: too long", size=size, limit=max_bytes)
        hasher.update(piece)
        file.write(piece)

    try:
        with draft.open("xb") as file:
            yield append
        if (actual := hasher.digest()) != name:
            raise WrongBytes(f"blob {name.hex()}", expected=name, actual=actual)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
