"""How many bytes a tensor takes under each codec, and which dtype its digest names. Torch-free.

Whoever handles bytes alone (coordinator, seals) reads sizes and digests from here; the
arithmetic is in `codecs.py`. Units: bytes, elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from contracts.terms.errors import Malformed
from contracts.terms.messages import (
    CodecName,
    DTypeName,
    SeededCodecName,
    ShardCodecName,
    is_seeded,
)

BLOCK = 4096  # elements that share a scale
SEEDED_BLOCK = 64  # likewise, of seeded codes
_SCALE_BYTES = 4


@dataclass(frozen=True)
class SeededFormat:
    """Layout of seeded codes: one byte of scale a block, all of them before all elements."""

    bits: Literal[4, 8]

    def num_bytes(self, num_elements: int) -> int:
        """Length on the wire."""
        return -(-num_elements // SEEDED_BLOCK) + -(-num_elements * self.bits // 8)


@dataclass(frozen=True)
class WireFormat:
    """Layout of a codec's bytes: with blocks, all scales (fp32) stand before all elements."""

    name: CodecName
    dtype_name: DTypeName
    element_bytes: int
    block: int | None = None

    def num_bytes(self, num_elements: int) -> int:
        """Length on the wire."""
        num_scales = -(-num_elements // self.block) if self.block else 0
        return num_scales * _SCALE_BYTES + num_elements * self.element_bytes

    def num_elements(self, num_bytes: int) -> int:
        """How many elements these bytes hold.

        Raises:
            Malformed: no number of elements takes so many.
        """
        if self.block:
            whole_block = _SCALE_BYTES + self.block * self.element_bytes
            blocks, rest = divmod(num_bytes, whole_block)
            found = blocks * self.block + max(rest - _SCALE_BYTES, 0) // self.element_bytes
        else:
            found = num_bytes // self.element_bytes
        if self.num_bytes(found) != num_bytes:
            raise Malformed(f"{num_bytes} bytes are no whole number of {self.name} elements")
        return found


FORMATS: Mapping[CodecName, WireFormat] = {
    "none": WireFormat("none", "float32", 4),
    "float16": WireFormat("float16", "float16", 2),
    "bfloat16": WireFormat("bfloat16", "bfloat16", 2),
    "blockwise8": WireFormat("blockwise8", "uint8", 1, block=BLOCK),
}
"""Every codec of which bytes say how many elements they hold."""

SEEDED: Mapping[SeededCodecName, SeededFormat] = {
    "seeded8": SeededFormat(8),
    "seeded4": SeededFormat(4),
}
"""Codecs of `differences`."""


def part_bytes(codec: ShardCodecName, num_elements: int) -> int:
    """How long a shard or a bucket of so many elements is."""
    if is_seeded(codec):
        return SEEDED[codec].num_bytes(num_elements)
    return FORMATS[codec].num_bytes(num_elements)


def exchanged_bytes(
    codecs: Sequence[ShardCodecName], num_elements: int, num_peers: int, num_vectors: int = 1
) -> int:
    """What each of some peers sends to average a vector: `codecs` of its shards and its bucket.

    All but its own part of its vector goes to the peers that sum it, its own sum to the others.
    Further vectors travel under the codec of the bucket alone.
    """
    all_codecs = (*codecs, *[codecs[-1]] * 2 * (num_vectors - 1))
    sent = sum(part_bytes(each, num_elements) for each in all_codecs)
    return sent * max(0, num_peers - 1) // max(1, num_peers)
