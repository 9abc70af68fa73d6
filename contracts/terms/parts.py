"""An index of parts: something of any size as blobs that a market takes one at a time. Pure.

Weights of a stage, and those that a job starts from, are cut into parts of `part_bytes` (the last
may be shorter), each a blob under its own digest. The index lists them in order and is a blob too;
its digest is the name of the whole, so equal bytes cut alike have one name, and every part is
checked before it is used. Units: bytes.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, Self

from annotated_types import Ge, Le, Len
from pydantic import model_validator

from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, DigestField
from contracts.terms.messages import BlobRecord

MAX_PART_BYTES = 64 * 2**20
MAX_PARTS = 4096
MAX_WHOLE_BYTES = MAX_PARTS * MAX_PART_BYTES


class Piece(NamedTuple):
    """Bytes [start, end) of part `number`."""

    number: int
    start: int
    end: int


class Parts(BlobRecord):
    """The parts of a whole, in order."""

    max_bytes = 2**18

    kind: Literal["parts.v1"] = "parts.v1"
    num_bytes: Annotated[int, Ge(1), Le(MAX_WHOLE_BYTES)]
    part_bytes: Annotated[int, Ge(1), Le(MAX_PART_BYTES)]
    parts: Annotated[tuple[DigestField, ...], Len(1, MAX_PARTS)]

    @model_validator(mode="after")
    def _as_many_as_it_takes(self) -> Self:
        if len(self.parts) != -(-self.num_bytes // self.part_bytes):
            raise ValueError(f"{len(self.parts)} parts do not make {self.num_bytes} bytes")
        return self

    def size_of(self, number: int) -> int:
        """Bytes of one part."""
        return min(self.part_bytes, self.num_bytes - number * self.part_bytes)

    def sizes(self) -> Iterator[tuple[Digest, int]]:
        """Name and size of each part."""
        return ((name, self.size_of(number)) for number, name in enumerate(self.parts))

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Where bytes [start, end) of the whole lie, in order.

        Raises:
            Malformed: they are no bytes of it.
        """
        if not 0 <= start <= end <= self.num_bytes:
            raise Malformed(f"bytes {start} to {end} of {self.num_bytes}")
        while start < end:
            number, offset = divmod(start, self.part_bytes)
            until = min(end, (number + 1) * self.part_bytes)
            yield Piece(number, offset, offset + until - start)
            start = until
