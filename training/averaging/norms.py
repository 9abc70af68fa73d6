"""How long the numbers are that wire bytes spell. Torch-free twin of `training.stages.exact`.

Whoever handles bytes alone (the coordinator, when it relays a part) can say with this whether a
part is as long as its GradCommit bound. Invariant: `norm_squared` is `exact.norm_squared` of the
decoded bytes, bit for bit: the same exact squares, added in the same tree. Units: 1e-12.
"""

import struct
from array import array
from fractions import Fraction
from math import isfinite
from operator import add

from typing_extensions import Buffer

from contracts.terms.errors import NotFinite, WrongBytes
from contracts.terms.messages import NORM_SQUARED_SCALE, GradientCodecName
from training.compression.formats import FORMATS


def norm_squared(data: Buffer, codec: GradientCodecName = "none") -> int:
    """Squared L2 norm of the numbers that a chunk's wire bytes spell, in 1e-12.

    Raises:
        Malformed: no whole number of elements. NotFinite: inf or nan.
    """
    values = _values(memoryview(data).cast("B"), codec)
    if not all(map(isfinite, values)):
        raise NotFinite("a gradient chunk is not finite")
    sums = array("d", (value * value for value in values))
    while len(sums) > 1:  # the second half is added to the first, as long as there are two
        half = (len(sums) + 1) // 2
        sums[: len(sums) - half] = array("d", map(add, sums, sums[half:]))
        del sums[half:]
    return round(Fraction(sum(sums)) * NORM_SQUARED_SCALE)


def need_norm(data: Buffer, expected: int, codec: GradientCodecName = "none") -> None:
    """Refuse bytes that are not as long as a message bound.

    Raises:
        WrongBytes: they are longer or shorter. Malformed, NotFinite: see `norm_squared`.
    """
    actual = norm_squared(data, codec)
    if actual != expected:
        raise WrongBytes("a chunk is not as long as was bound", expected=expected, actual=actual)


def _values(data: memoryview, codec: GradientCodecName) -> "array[float]":
    num_elements = FORMATS[codec].num_elements(len(data))
    if codec == "float16":
        return array("f", (value for (value,) in struct.iter_unpack("<e", data)))
    values = array("f")
    if codec == "bfloat16":  # the upper half of an fp32
        whole = bytearray(4 * num_elements)
        whole[2::4], whole[3::4] = data[0::2], data[1::2]
        values.frombytes(whole)
    else:
        values.frombytes(data)
    return values
