"""What the bytes behind a digest spell, by the signed JobSpec: how they are named, how long they are.

A boundary tensor is kept and sent with its form (`contracts.terms.digest.formed_tensor`), so its
bytes name themselves; a shard or bucket is a vector as it travels, whose form is the job's codec.
Torch-free. Units: bytes.
"""

import math

from typing_extensions import Buffer

from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.digest import formed_digest, formed_tensor
from contracts.terms.errors import WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Sort
from training.averaging.slices import slice_digest
from training.compression.formats import FORMATS


class Forms:
    """Of boundary tensors, shards and buckets of one job."""

    def __init__(self, spec: JobSpec) -> None:
        self.codec = spec.rules.gradient_codec
        shape = (spec.batch.rows_per_unit, spec.model.sequence_length, spec.model.width)
        wire = FORMATS[spec.rules.boundary_codec]
        form = formed_tensor(wire.dtype_name, shape, b"")
        self._formed_bytes = len(form) + wire.num_bytes(math.prod(shape))

    def digest_of(self, sort: Sort, data: Buffer) -> Digest:
        """The name of these bytes, if they spell a boundary tensor, or a part of a gradient.

        Raises:
            Malformed: they are no whole number of elements.
        """
        return slice_digest(data, self.codec) if sort == "part" else formed_digest(data)

    def need(self, sort: Sort, data: Buffer, expected: Digest) -> None:
        """Refuse bytes that are not those of a digest.

        Raises:
            WrongBytes: they differ. Malformed: as `digest_of`.
        """
        if (actual := self.digest_of(sort, data)) != expected:
            raise WrongBytes(
                "other bytes than their digest says", expected=expected.hex(), actual=actual.hex()
            )

    def most_bytes(self, sort: Sort) -> int:
        """How long bytes of this sort are at most."""
        return MAX_CHUNK_BYTES if sort == "part" else self._formed_bytes

    def part_bytes(self, num_elements: int) -> int:
        """How long a shard or a bucket of so many elements is."""
        return FORMATS[self.codec].num_bytes(num_elements)
