"""Tensor arithmetic whose bytes do not depend on threads, chunking or device, and its wire form.

Invariant: only element-wise operations, each rounded once, in a fixed order; a sum over elements
is a tree of element-wise additions. What members must derive alike (norms, means, updates) is
computed here, never with `sum`, `norm`, `dot` or fused kernels, whose order depends on threads.
Wire form: fp32, little-endian, C order, without header.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from contracts.terms.errors import NotFinite, Refused
from contracts.terms.messages import NORM_SQUARED_SCALE

_BYTES_PER_ELEMENT = 4
_BLOCK = 2**15  # elements at a time: what fits a core's cache is done two to four times faster
_LEVELS_AT_ONCE = 4


def need_finite(tensor: Tensor, what: str, *, largest: float = math.inf) -> None:
    """Refuse inf and nan, and magnitudes above `largest`.

    Raises:
        NotFinite: naming `what`.
    """
    if not tensor.numel():
        return
    # Extremes instead of a mask: one pass without memory of its own; nan is an extreme to aminmax.
    extremes = [abs(float(extreme)) for extreme in torch.aminmax(tensor.detach())]
    if not all(map(math.isfinite, extremes)):
        raise NotFinite(f"{what} is not finite")
    if max(extremes) > largest:
        raise NotFinite(f"{what} is so large that it may not be finite elsewhere")


def norm_squared(vector: Tensor) -> int:
    """Squared L2 norm of an fp32 vector, in 1e-12, the same on every device.

    Squares of fp32 numbers are exact in fp64; they are added in a tree that halves the vector.

    Raises:
        NotFinite: the vector holds inf or nan.
    """
    need_finite(vector, "a gradient chunk")
    flat = vector.detach().flatten()
    sizes = [flat.numel()]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    level = min(_LEVELS_AT_ONCE, len(sizes) - 1)
    partial = torch.empty(sizes[level], dtype=torch.float64, device=flat.device)
    for start in range(0, len(partial), _BLOCK):
        stop = min(start + _BLOCK, len(partial))
        partial[start:stop] = _partial_sums(flat, sizes[: level + 1], start, stop)
    for size in sizes[level + 1 :]:
        partial[: len(partial) - size] += partial[size:]
        partial = partial[:size]
    return round(Fraction(float(partial.sum())) * NORM_SQUARED_SCALE)


def _partial_sums(flat: Tensor, sizes: Sequence[int], start: int, stop: int) -> Tensor:
    """Elements [start, stop) of the tree's last level; `sizes` are its levels' from the leaves."""
    *below, size = sizes
    if not below:
        return flat[start:stop].double().square()
    sums = _partial_sums(flat, below, start, stop)
    end = min(stop + size, below[-1])
    if start + size < end:
        sums[: end - start - size] += _partial_sums(flat, below, start + size, end)
    return sums


def weighted_mean(
    parts: Sequence[Tensor], weights: Sequence[int], totals: Sequence[int] = ()
) -> Tensor:
    """Mean of equally long fp32 vectors by whole weights, added in the given order.

    Each part is multiplied with fp32(weight / total), so the mean of one part is that part. Where
    `totals` says another total for each part, groups with one total each have their means added.

    Raises:
        Refused: no part, a weight below 0, a total that is not positive, or not as many.
    """
    totals = totals or [sum(weights)] * len(weights)
    if not parts or not len(parts) == len(weights) == len(totals):
        raise Refused("a mean needs as many weights as parts, and at least one")
    if min(weights) < 0 or min(totals) <= 0:
        raise Refused("the weights of a mean are not negative, and not all of them zero")
    mean = torch.zeros_like(parts[0])
    for start in range(0, len(mean), _BLOCK):
        for part, weight, total in zip(parts, weights, totals, strict=True):
            mean[start : start + _BLOCK] += part[start : start + _BLOCK] * (weight / total)
    return mean


def to_wire(tensor: Tensor) -> memoryview:
    """Wire bytes of an fp32 tensor; shares memory with a contiguous tensor on the CPU."""
    return tensor.detach().cpu().contiguous().numpy().data.cast("B")
