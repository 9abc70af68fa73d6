"""A chunk of a gradient on its way: its wire bytes and what a message says of them. Torch-free.

Wire form: that of the job's gradient codec. Invariant: the digest is over bytes, dtype and shape,
so equal digests mean equal numbers. Units: squared norms in 1e-12.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from typing_extensions import Buffer

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.messages import ShardCodecName, is_seeded
from contracts.terms.work import WorkClaim
from training.compression.formats import FORMATS, part_bytes


@dataclass(frozen=True)
class Slice:
    """One chunk: bytes, digest, squared norm of the numbers that they spell (1e-12)."""

    data: bytes
    digest: Digest
    norm_squared: int


def slice_digest(data: Buffer, codec: ShardCodecName = "none") -> Digest:
    """Digest of a chunk's wire bytes under the job's gradient codec.

    Of a job with seeded codes shards and buckets have different forms: both are named as bytes.

    Raises:
        Malformed: the bytes are no whole number of elements.
    """
    if is_seeded(codec):
        return tensor_digest("uint8", (memoryview(data).nbytes,), data)
    wire = FORMATS[codec]
    num_elements = wire.num_elements(memoryview(data).nbytes)
    return tensor_digest(wire.dtype_name, (num_elements,), data)


def need_elements(data: Buffer, expected: int, codec: ShardCodecName = "none") -> None:
    """Refuse bytes of another number of elements than a chunk has; raises WrongBytes."""
    actual, wanted = memoryview(data).nbytes, part_bytes(codec, expected)
    if actual != wanted:
        raise WrongBytes("bytes of a chunk", expected=wanted, actual=actual)


def in_peer_order(claims: Iterable[WorkClaim], groups: Collection[int]) -> tuple[WorkClaim, ...]:
    """The claims of some groups in the order of a sum: by group, peer, then as they were made."""
    own = (claim for claim in claims if claim.group in groups)
    return tuple(sorted(own, key=lambda each: (each.group, each.peer, each.round, each.seq)))
