"""The weighted mean of parts, byte for byte the same wherever it is computed.

fp32, one rounding an operation, parts in peer order (`slices.in_peer_order`), each multiplied with
fp32(weight / total); see `training.stages.exact`. The mean of one part is that part.
"""

from collections.abc import Sequence

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import Malformed
from training.averaging.slices import BYTES_PER_ELEMENT, Slice, slice_digest
from training.stages.exact import from_wire, norm_squared, to_wire, weighted_mean


def slice_of(chunk: Tensor) -> Slice:
    """An fp32 vector as it is sent."""
    data = bytes(to_wire(chunk))
    return Slice(data, slice_digest(data), norm_squared(chunk))


def vector_of(data: Buffer) -> Tensor:
    """The fp32 vector that wire bytes spell.

    Raises:
        Malformed: no whole number of elements. NotFinite: inf or nan.
    """
    view = memoryview(data).cast("B")
    return from_wire(view, len(view) // BYTES_PER_ELEMENT)


def mean_slice(parts: Sequence[Buffer], weights: Sequence[int]) -> Slice:
    """Mean of `parts` (wire bytes, in peer order) by `weights` (samples).

    Raises:
        Malformed: parts of different lengths. Refused: none, or weights that do not fit.
        NotFinite: inf or nan.
    """
    vectors = [vector_of(part) for part in parts]
    if len({len(vector) for vector in vectors}) > 1:
        raise Malformed("parts of one chunk differ in length")
    return slice_of(weighted_mean(vectors, weights))
