"""How long the numbers are that wire bytes spell. Torch-free.

Whoever makes or is given a shard or a bucket (a member, the coordinator) takes its norm with this.
Invariant: the same on all machines, as exact squares are added in a tree. Units: 1e-12.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from contracts.terms.errors import NotFinite, WrongBytes
from contracts.terms.messages import (
    NORM_SQUARED_SCALE,
    GradientCodecName,
    ShardCodecName,
    is_seeded,
)
from training.compression.formats import FORMATS
from training.compression.seeded import decode_seeded

_BLOCK = 2**16  # elements that are squared at a time: the rest of the memory is half of the sums


def norm_squared(data: Buffer, codec: GradientCodecName = "none") -> int:
    """Squared L2 norm of the numbers that a shard's or bucket's wire bytes spell, in 1e-12.

    Squares of fp32 numbers are exact in fp64; they are added in a tree that halves the vector.

    Raises:
        Malformed: no whole number of elements. NotFinite: inf or nan.
    """
    view = memoryview(data).cast("B")
    num_elements = FORMATS[codec].num_elements(len(view))
    numbers: NDArray[Any] = np.frombuffer(view, _DTYPES[codec])
    half = (num_elements + 1) // 2
    sums = np.zeros(half, np.float64)
    for first in (0, half):  # the second half is added to the first, as long as there are two
        for start in range(first, min(first + half, num_elements), _BLOCK):
            stop = min(start + _BLOCK, first + half, num_elements)
            values = _decoded(numbers[start:stop], codec).astype(np.float64)
            sums[start - first : stop - first] += values * values
    while len(sums) > 1:
        half = (len(sums) + 1) // 2
        sums[: len(sums) - half] += sums[half:]
        sums = sums[:half]
    total = float(sums.sum())
    if not math.isfinite(total):  # squares of fp32 numbers are far from the end of fp64
        raise NotFinite("a gradient bucket is not finite")
    return round(Fraction(total) * NORM_SQUARED_SCALE)


_DTYPES = {"none": "<f4", "float16": "<f2", "bfloat16": "<u2"}


def _decoded(numbers: NDArray[Any], codec: GradientCodecName) -> NDArray[Any]:
    if codec != "bfloat16":
        return numbers
    return (numbers.astype("<u4") << 16).view("<f4")  # the upper half of an fp32


def need_norm(
    data: Buffer,
    expected: int,
    codec: ShardCodecName = "none",
    *,
    num_elements: int = 0,
    between: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Refuse bytes that are not as long as a message bound.

    Args:
        data: Of a shard or a bucket.
        expected: The squared norm that was bound, 1e-12.
        codec: Of the bytes.
        num_elements: That they spell; seeded codes do not say it.
        between: What an element may be at least and at most.

    Raises:
        WrongBytes: they are longer or shorter, or an element is out of its range. Malformed,
            NotFinite: see `norm_squared`.
    """
    if is_seeded(codec):
        data, codec = decode_seeded(data, num_elements, codec).data, "none"
    actual = norm_squared(data, codec)
    if actual != expected:
        raise WrongBytes("a bucket is not as long as was bound", expected=expected, actual=actual)
    if between == (-math.inf, math.inf):
        return
    numbers: NDArray[Any] = np.frombuffer(memoryview(data).cast("B"), _DTYPES[codec])
    for start in range(0, len(numbers), _BLOCK):
        block = _decoded(numbers[start : start + _BLOCK], codec)
        if block.min() < between[0] or block.max() > between[1]:
            raise WrongBytes("an element is none that steps come to", between=str(between))
