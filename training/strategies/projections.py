"""A gradient in one number that nobody can guess: what shows that an auditor did the work.

projection = 1e6 x <g, r> / |g|, rounded, where r holds +1 and -1 as `training.philox` draws them
from a 32-byte seed: bit k of the stream, the lowest of each byte first, is element k, 0 for +1. It
is about normal with variance 1, whatever the gradient (docs/protocol.md 5).

Two honest replays whose gradients have a relative L2 distance d differ by d x N(0, 1), and by at
most d x |projection| more for the norm. 12 d are allowed, which a pair exceeds once in 1e7
(`verification.distances.thresholds.projections_allowed`).
Equal bytes give numbers that differ by 1 at most, as the sums in fp64 may round differently.
"""

import math

import numpy as np
from numpy.typing import NDArray

from training.philox import philox_bytes

PROJECTION_SCALE = 10**6
_BLOCK = 2**13  # elements at a time, a multiple of 64; OpenBLAS spreads longer ones over all cores


class Projector:
    """The direction of one seed, one bit an element."""

    def __init__(self, seed: bytes, num_elements: int) -> None:
        self._bits = philox_bytes(seed, -(-num_elements // 8))

    def of(self, vector: NDArray[np.float32]) -> int:
        """The projection of a gradient (P,), in 1e-6; 0 of a gradient that is zero."""
        along = square = 0.0
        for start in range(0, len(vector), _BLOCK):
            block = vector[start : start + _BLOCK].astype(np.float64)
            bits = self._bits[start // 8 : (start + _BLOCK) // 8]
            minus = np.unpackbits(bits, count=len(block), bitorder="little")
            along += float(block @ (1.0 - 2.0 * minus))
            square += float(block @ block)
        return round(PROJECTION_SCALE * along / math.sqrt(square)) if square else 0
