"""What the bytes behind a digest spell, by the JobSpec: how they are named, how long they are.

A boundary tensor is kept and sent with its form (`contracts.terms.digest.formed_tensor`), so its
bytes name themselves; a shard or bucket is a vector as it travels, whose form is the job's codec.
Torch-free. Units: bytes.
"""

import math

from typing_extensions import Buffer

from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.digest import formed_digest, formed_tensor, tensor_digest
from contracts.terms.errors import Malformed, WrongBytes
from contracts.terms.ids import ChunkIndex, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Sort, WhatField
from training.averaging.norms import need_norm
from training.averaging.slices import need_elements, slice_digest
from training.compression.formats import FORMATS, part_bytes
from training.strategies.limits import numbers_of

_TOKEN_BYTES = (1, 2, 4)


class Forms:
    """Of boundary tensors, shards and buckets of one job."""

    def __init__(self, spec: JobSpec) -> None:
        self._codecs, self._numbers_of = spec.rules.part_codecs, numbers_of(spec)
        shape = (spec.batch.rows_per_unit, spec.model.sequence_length, spec.model.width)
        wire = FORMATS[spec.rules.boundary_codec]
        self.rows_shape = (spec.batch.rows_per_unit, spec.model.sequence_length + 1)
        self.boundary_form = formed_tensor(wire.dtype_name, shape, b"")
        """What the bytes of a boundary tensor begin with."""
        self.boundary_bytes = len(self.boundary_form) + wire.num_bytes(math.prod(shape))

    def digest(self, sort: Sort, data: Buffer) -> Digest:
        """Digest of rows or of a part as they travel, or of a boundary tensor as it is formed.

        That may be of whatever form: nobody computes on one that is not the job's.

        Raises:
            Malformed: no rows, or no whole number of elements.
        """
        match sort:
            case "boundary":
                return formed_digest(data)
            case "part":
                return slice_digest(data, self._codecs[0])
            case "rows":
                return tensor_digest(f"uint{8 * self.token_bytes(data)}", self.rows_shape, data)

    def token_bytes(self, rows: Buffer, num_rows: int | None = None) -> int:
        """Bytes of one token in the rows of an item, or in `num_rows`; raises Malformed."""
        whole, row_tokens = self.rows_shape
        num_bytes, num_tokens = memoryview(rows).nbytes, (num_rows or whole) * row_tokens
        size, rest = divmod(num_bytes, num_tokens)
        if rest or size not in _TOKEN_BYTES:
            raise Malformed(f"{num_bytes} bytes are no rows of {num_tokens} tokens together")
        return size

    def need(self, sort: Sort, data: Buffer, expected: Digest) -> None:
        """Refuse bytes that are not those of a digest.

        Raises:
            WrongBytes: they differ. Malformed: as `digest`.
        """
        if (actual := self.digest(sort, data)) != expected:
            raise WrongBytes(
                "other bytes than their digest says", expected=expected.hex(), actual=actual.hex()
            )

    def most_bytes(self, sort: Sort) -> int:
        """How long bytes of this sort are at most."""
        return MAX_CHUNK_BYTES if sort == "part" else self.boundary_bytes

    def part_bytes(self, num_elements: int) -> int:
        """How long a shard or a bucket of so many elements is at most."""
        return max(part_bytes(each, num_elements) for each in self._codecs)

    def need_part(
        self,
        what: WhatField,
        bucket: ChunkIndex,
        data: Buffer,
        num_elements: int,
        norm_squared: int,
    ) -> None:
        """Refuse a shard (`work`) or a bucket that is not as its claim says.

        Raises:
            WrongBytes: of another length or norm, or with numbers that the strategy does not have.
                Malformed, NotFinite: codes that nobody makes.
        """
        codec, between = self._numbers_of(what, bucket)
        need_elements(data, num_elements, codec)
        need_norm(data, norm_squared, codec, num_elements=num_elements, between=between)
