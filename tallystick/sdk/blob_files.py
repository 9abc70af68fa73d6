"""Blobs as files, a piece at a time: evidence may have gigabytes, and a program not the memory.

Whoever calls this gets an `OSError` that names the file if it cannot be read or written.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from contracts.terms.digest import BlobHasher
from contracts.terms.errors import TooLarge, WrongBytes
from contracts.terms.ids import Digest

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
