"""Files that others fetch from us in ranges: what they are called, and their bytes.

Invariants: a file is read once for all who ask for its digest; of a file that goes meanwhile the
answer is that it is not here. A file may be larger than the memory that is left, so it is read in
pieces of `RANGE` bytes at most.
"""

import asyncio
import os
from collections import OrderedDict
from pathlib import Path

from contracts.terms.digest import BlobHasher
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import ZERO_DIGEST
from training.transport.calls import FileView
from training.worker.download import RANGE
from training.worker.engine import Engine


class ServedFiles:
    """Remembers the digests of the `most` files that were asked for last."""

    def __init__(self, engine: Engine, *, most: int = 1) -> None:
        self._engine, self._most = engine, most
        self._known: OrderedDict[Path, tuple[int, FileView]] = OrderedDict()
        self._viewing = asyncio.Lock()

    async def view(self, path: Path) -> FileView:
        """Digest and size of a file; raises NotFound."""
        async with self._viewing:  # read once, for all who ask at the same time
            written = _stat(path).st_mtime_ns
            if path not in self._known or self._known[path][0] != written:
                self._known[path] = written, await self._engine.run_io(lambda: _view_of(path))
            self._known.move_to_end(path)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[path][1]

    async def range(self, path: Path, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Malformed."""
        size = _stat(path).st_size
        if not 0 <= start < end <= min(size, start + RANGE):
            raise Malformed(f"bytes {start} to {end} of {size}, {RANGE} at once")
        return await self._engine.run_io(lambda: _read_range(path, start, end))


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:  # dropped for a newer one at this moment
        raise NotFound(f"{path.name} is gone") from error


def _view_of(path: Path) -> FileView:
    hasher, size = BlobHasher(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(RANGE):
                hasher.update(piece)
                size += len(piece)
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error
    return FileView(digest=hasher.digest(), num_bytes=size, state_root=ZERO_DIGEST)


def _read_range(path: Path, start: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error
