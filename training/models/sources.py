"""Bytes that are read where they are wanted: of a file, of a buffer, of parts that blobs hold.

Whoever reads a source holds what it asked for and no more, so a stage's weights pass through a
program without ever being in its memory at once. Units: bytes.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from contracts.terms.digest import BlobHasher
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from contracts.terms.parts import MAX_PART_BYTES, Parts

PIECE = 2**20  # that is read at a time where a whole is gone through


class Source(Protocol):
    """So many bytes."""

    @property
    def num_bytes(self) -> int:
        """How many there are."""

    def read_into(self, start: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `start` on; there are as many."""


def read(source: Source, start: int, end: int) -> bytearray:
    """Bytes [start, end) of `source`; raises Malformed where it has none."""
    if not 0 <= start <= end <= source.num_bytes:
        raise Malformed(f"bytes {start} to {end} of {source.num_bytes}")
    found = bytearray(end - start)
    source.read_into(start, memoryview(found))
    return found


def parts_of(source: Source, *, part_bytes: int = MAX_PART_BYTES) -> Parts:
    """The index of `source` in parts of `part_bytes`; a piece of one is in memory at a time.

    Raises:
        Malformed: it is empty, or of more than `MAX_PARTS` parts.
    """
    ends = (
        (at, min(at + part_bytes, source.num_bytes))
        for at in range(0, source.num_bytes, part_bytes)
    )
    names = tuple(_digest(source, start, end) for start, end in ends)
    return Parts.from_value(
        {"num_bytes": source.num_bytes, "part_bytes": part_bytes, "parts": names}
    )


def _digest(source: Source, start: int, end: int) -> Digest:
    hasher = BlobHasher()
    for first in range(start, end, PIECE):
        hasher.update(read(source, first, min(first + PIECE, end)))
    return hasher.digest()


class BytesSource:
    """A buffer in memory."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).cast("B")
        self.num_bytes = self._data.nbytes

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`."""
        into[:] = self._data[start : start + into.nbytes]


class FileSource:
    """A file that does not change; opened for each read."""

    def __init__(self, path: Path) -> None:
        """Look how long it is; raises Malformed if it cannot be read."""
        self._path = path
        try:
            self.num_bytes = path.stat().st_size
        except OSError as error:
            raise Malformed(f"cannot read {path}: {error.strerror}") from error

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`; raises Malformed if the file is shorter by now."""
        try:
            with self._path.open("rb", buffering=0) as file:
                while into.nbytes:
                    count = os.preadv(file.fileno(), [into], start)
                    if count == 0:
                        raise Malformed(f"{self._path} ends at {start}")
                    start, into = start + count, into[count:]
        except OSError as error:
            raise Malformed(f"cannot read {self._path}: {error.strerror}") from error


class RangeSource:
    """Bytes [start, end) of another source."""

    def __init__(self, source: Source, start: int, end: int) -> None:
        self._source, self._start, self.num_bytes = source, start, end - start

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`."""
        self._source.read_into(self._start + start, into)


class JoinedSource:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = [source for source in sources if source.num_bytes]
        ends = list(accumulate((source.num_bytes for source in self._sources), initial=0))
        self._starts, self.num_bytes = ends[:-1], ends[-1]

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`."""
        number = bisect_right(self._starts, start) - 1
        while into.nbytes:
            source, offset = self._sources[number], start - self._starts[number]
            count = min(into.nbytes, source.num_bytes - offset)
            source.read_into(offset, into[:count])
            start, into, number = start + count, into[count:], number + 1


class PartsSource:
    """What an index lists; parts are fetched when a byte of them is wanted.

    Args:
        index: The parts.
        part: One of them, its bytes already compared with its digest.
    """

    def __init__(self, index: Parts, part: Callable[[Digest], Source]) -> None:
        self._index, self._part, self.num_bytes = index, part, index.num_bytes

    def read_into(self, start: int, into: memoryview) -> None:
        """See `Source.read_into`; raises Malformed for a part of another size, and as `part`."""
        done = 0
        for number, first, end in self._index.pieces(start, start + into.nbytes):
            part = self._part(self._index.parts[number])
            if part.num_bytes != self._index.size_of(number):
                raise Malformed(f"part {number} has {part.num_bytes} bytes")
            part.read_into(first, into[done : done + end - first])
            done += end - first
