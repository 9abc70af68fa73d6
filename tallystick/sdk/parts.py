"""What is larger than a blob, to and from a market: an index, and its parts one at a time.

Safe to repeat: a part that the market has is not sent again, and one that is on disk and has its
digest is not fetched again. Parts go out as they are read and to disk as they come.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from contracts.terms.ids import Digest
from contracts.terms.parts import MAX_INDEX_BYTES, MAX_WHOLE_BYTES, Parts, decode_parts
from tallystick.sdk.blob_files import PIECE, measured
from tallystick.sdk.client import MarketClient
from tallystick.sdk.signing import Signer
from training.models.sources import FileSource, PartsSource, Source, read

Stored = Callable[[], None]


async def put_parts(
    client: MarketClient,
    source: Source,
    index: Parts,
    *,
    by: Signer,
    stored: Stored = lambda: None,
) -> None:
    """Store what `index` lists, and the index last: who finds it finds the parts.

    Args:
        client: The market.
        source: What the index was made of.
        index: Its parts.
        by: At whose expense.
        stored: Called for each part once the market has it.

    Raises:
        WrongBytes: `source` is no longer what the index was made of, says the market.
        Refused, Unavailable: as the market answers.
    """
    start = 0
    for name, size in index.sizes():
        if not await client.has_blob(name):
            content = partial(_pieces, source, start, start + size)
            await client.put_pieces(name, size, content, by=by)
        start += size
        stored()
    await client.put_blob(index.encoded(), by=by)


async def _pieces(source: Source, start: int, end: int) -> AsyncIterator[bytes]:
    for first in range(start, end, PIECE):
        yield await asyncio.to_thread(_piece, source, first, min(first + PIECE, end))


def _piece(source: Source, start: int, end: int) -> bytes:
    return bytes(read(source, start, end))


async def get_parts(
    client: MarketClient, name: Digest, folder: Path, *, until: int = MAX_WHOLE_BYTES
) -> Source:
    """What the index `name` lists, in files of `folder`, which is made if need be.

    Of a longer one only the parts that bytes before `until` lie in.

    Raises:
        NotFound: the market has not all of it. WrongBytes: it answered with other bytes.
        Malformed, UnknownVersion: no index. OSError: a file cannot be written.
    """
    index = decode_parts(await client.get_blob(name, max_bytes=MAX_INDEX_BYTES))
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    for part in index.parts[: -(-until // index.part_bytes)]:
        path = folder / part.hex()
        if not await asyncio.to_thread(_is_here, path, part):
            await client.save_blob(part, path)
    return PartsSource(index, lambda part: FileSource(folder / part.hex()))


def _is_here(path: Path, name: Digest) -> bool:
    return path.is_file() and measured(path)[1] == name
