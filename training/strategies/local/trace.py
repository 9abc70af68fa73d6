"""What a replica says of each inner step, so that a replay can tell which step is not its own.

A round's difference alone hides a skipped step in the middle: 8.5 % of its length, where honest
bf16 differs by 1.8 to 2.5 %. So each step is told by loss, gradient norm and eight projections

    projection k = 1e6 x <g, r_k> / |g|, rounded

of the gradient on signs r_k that `training.philox` draws from 32 bytes: bit k of byte e is the sign
of element e, 0 for +1. They cover every element; sampled elements would let a replica leave out
gradients of weights that are not sampled.
The seed is a digest of the sealed base, item and step: whoever does not compute the step cannot
know its numbers.

Two gradients at relative L2 distance d have projections that differ by d x N(0, 1) each, so
`residual`, the root mean square of eight differences, estimates d.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contracts.terms.messages import NUMBERS_OF_STEP
from training.philox import philox_bytes

NUM_PROJECTIONS = NUMBERS_OF_STEP - 2
SCALE = 10**6
_BLOCK = 2**12  # elements at a time; their signs are eight numbers each


@dataclass(frozen=True)
class TracedStep:
    """One inner step in ten integers."""

    loss: int  # 1e-6 nats per token
    norm: int  # 1e-6, of the gradient before clipping
    projections: tuple[int, ...]  # 1e-6


def projections(vector: NDArray[np.float32], seed: bytes) -> tuple[int, ...]:
    """Eight projections of a vector (P,) over its norm, in 1e-6; zeros of a vector of zeros."""
    bits = philox_bytes(seed, len(vector))[:, None]
    along, square = np.zeros(NUM_PROJECTIONS), 0.0
    for start in range(0, len(vector), _BLOCK):
        block = vector[start : start + _BLOCK].astype(np.float64)
        minus = np.unpackbits(bits[start : start + _BLOCK], axis=1, bitorder="little")
        along += block.sum() - 2.0 * (block @ minus)
        square += float(block @ block)
    if not square:
        return (0,) * NUM_PROJECTIONS
    return tuple(round(SCALE * float(each) / math.sqrt(square)) for each in along)


def residual(claimed: Sequence[int], replayed: Sequence[int]) -> float:
    """Root mean square of the differences of two steps' projections; inf if one lacks some."""
    if len(claimed) != len(replayed):
        return math.inf
    squares = ((a - b) ** 2 for a, b in zip(claimed, replayed, strict=True))
    return math.sqrt(sum(squares) / len(claimed)) / SCALE
