"""What the bytes of an outer difference spell. Torch-free twin of `differences.decode`."""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from contracts.terms.errors import Malformed
from contracts.terms.messages import SeededCodecName
from training.compression.formats import SEEDED, SEEDED_BLOCK

ZERO_BLOCK = -128
"""The exponent of a block without a number other than 0."""


def decode_seeded(data: Buffer, num_elements: int, codec: SeededCodecName) -> NDArray[np.float32]:
    """The fp32 vector (P,) that wire bytes spell; see `differences` for their form.

    Raises:
        Malformed: another number of bytes, or codes that nobody makes.
    """
    layout, view = SEEDED[codec], memoryview(data).cast("B")
    if len(view) != layout.num_bytes(num_elements):
        raise Malformed(f"{len(view)} bytes are not {num_elements} elements of {codec}")
    num_blocks = -(-num_elements // SEEDED_BLOCK)
    exponents = np.frombuffer(view[:num_blocks], np.int8).astype(np.int32)[:, None]
    codes = np.frombuffer(view[num_blocks:], np.int8)
    if layout.bits == 4:
        codes = _nibbles(codes, num_elements)
    codes = np.pad(codes, (0, -num_elements % SEEDED_BLOCK)).reshape(-1, SEEDED_BLOCK)
    is_zero = exponents == ZERO_BLOCK
    if (codes < -largest_code(codec)).any() or (is_zero & (codes != 0)).any():
        raise Malformed("a code of a difference is out of its range")
    return np.ldexp(codes.astype(np.float32), exponents).reshape(-1)[:num_elements]


def largest_code(codec: SeededCodecName) -> int:
    """Codes are from minus this to this."""
    return int(2 ** (SEEDED[codec].bits - 1)) - 1


def _nibbles(data: NDArray[np.int8], count: int) -> NDArray[np.int8]:
    both = np.stack((data << 4, data), axis=1) >> 4  # an arithmetic shift keeps the sign
    if count % 2 and both[-1, 1]:
        raise Malformed("a difference goes on behind its last element")
    return both.reshape(-1)[:count].astype(np.int8)
