"""What a replica says of each inner step, so that a replay can tell which step is not its own.

A round's difference alone hides a skipped step in the middle: 8.5 % of its length, where honest
bf16 differs by 1.8 to 2.5 %. So each step is told by loss, gradient norm and eight projections

    projection k = 1e6 x <g, r_k> / |g|, rounded

of the gradient on signs r_k: of element e the product of two signs that `training.philox` draws
from 32 bytes, one of the row and one of the column in which e lies when the vector is written in
rows of 4,096. Bit k of byte c is the sign of column c, bit k of byte 4,096 + r that of row r; 0 is
+1. Products of independent signs are uncorrelated, so the projections are as good as those of one
sign an element, which took ten times as long as the step of a model of 135 M parameters.
They cover every element; sampled elements would let a replica leave out gradients of weights that
are not sampled. The seed is a digest of the sealed base, item and step: whoever does not compute
the step cannot know its numbers.

Two gradients at relative L2 distance d have projections that differ by d x N(0, 1) each, so
`residual`, the root mean square of eight differences, estimates d.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contracts.terms.messages import NUMBERS_OF_STEP
from training.philox import philox_bytes

NUM_PROJECTIONS = NUMBERS_OF_STEP - 2
SCALE = 10**6
_ROW = 2**12


@dataclass(frozen=True)
class TracedStep:
    """One inner step in ten integers."""

    loss: int  # 1e-6 nats per token
    norm: int  # 1e-6, of the gradient before clipping
    projections: tuple[int, ...]  # 1e-6


def projections(vector: Tensor, seed: bytes) -> tuple[int, ...]:
    """Eight projections of a vector (P,) over its norm, in 1e-6; zeros of a vector of zeros."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if not norm:
        return (0,) * NUM_PROJECTIONS
    num_rows = len(vector) // _ROW
    bits = np.unpackbits(
        philox_bytes(seed, _ROW + num_rows + 1)[:, None], axis=1, bitorder="little"
    )
    signs = torch.from_numpy(1.0 - 2.0 * bits.T).to(vector.device, torch.float32)
    of_columns, of_rows = signs[:, :_ROW], signs[:, _ROW:]
    whole = num_rows * _ROW
    sums = of_rows[:, :num_rows] @ vector[:whole].view(num_rows, _ROW)
    rest = vector[whole:]
    sums[:, : len(rest)] += of_rows[:, num_rows:] * rest
    along = (sums.double() * of_columns.double()).sum(dim=1) / norm
    return tuple(round(SCALE * each) for each in along.tolist())


def residual(claimed: Sequence[int], replayed: Sequence[int]) -> float:
    """Root mean square of the differences of two steps' projections; inf if one lacks some."""
    if len(claimed) != len(replayed):
        return math.inf
    squares = ((a - b) ** 2 for a, b in zip(claimed, replayed, strict=True))
    return math.sqrt(sum(squares) / len(claimed)) / SCALE
