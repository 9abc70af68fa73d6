"""Tensor arithmetic whose bytes do not depend on threads, chunking or device, and its wire form.

Invariant: only element-wise operations, each rounded once, in a fixed order; a sum over elements
is a tree of element-wise additions. What members must derive alike (norms, means, updates) is
computed here, never with `sum`, `norm`, `dot` or fused kernels, whose order depends on threads.
Wire form: fp32, little-endian, C order, without header.
"""

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite, Refused
from contracts.terms.messages import NORM_SQUARED_SCALE

_BYTES_PER_ELEMENT = 4


def need_finite(tensor: Tensor, what: str) -> None:
    """Refuse inf and nan.

    Raises:
        NotFinite: naming `what`.
    """
    if not bool(torch.isfinite(tensor).all()):
        raise NotFinite(f"{what} is not finite")


def norm_squared(vector: Tensor) -> int:
    """Squared L2 norm of an fp32 vector, in 1e-12, the same on every device.

    Squares of fp32 numbers are exact in fp64; they are added in a tree that halves the vector.

    Raises:
        NotFinite: the vector holds inf or nan.
    """
    need_finite(vector, "a gradient chunk")
    partial = vector.detach().flatten().double().square()
    while partial.numel() > 1:
        half = (partial.numel() + 1) // 2
        partial[: partial.numel() - half] += partial[half:]
        partial = partial[:half]
    return round(Fraction(float(partial.sum())) * NORM_SQUARED_SCALE)


def weighted_mean(parts: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """Mean of equally long fp32 vectors by whole weights, added in the given order.

    Each part is multiplied with fp32(weight / total), so the mean of one part is that part.

    Raises:
        Refused: no part, or weights that are not positive or not as many.
    """
    if not parts or len(parts) != len(weights) or min(weights) <= 0:
        raise Refused("a mean needs as many positive weights as parts, and at least one")
    total = sum(weights)
    mean = torch.zeros_like(parts[0])
    for part, weight in zip(parts, weights, strict=True):
        mean += part * (weight / total)
    return mean


def to_wire(tensor: Tensor) -> memoryview:
    """Wire bytes of an fp32 tensor; shares memory with a contiguous tensor on the CPU."""
    return tensor.detach().cpu().contiguous().numpy().data.cast("B")


def from_wire(data: bytes | bytearray | memoryview, num_elements: int) -> Tensor:
    """The fp32 vector that wire bytes spell, as a copy.

    Raises:
        Malformed: another number of bytes.
        NotFinite: inf or nan among the elements.
    """
    if len(data) != num_elements * _BYTES_PER_ELEMENT:
        raise Malformed(f"{len(data)} bytes are not {num_elements} fp32 elements")
    vector = torch.frombuffer(bytearray(data), dtype=torch.float32)
    need_finite(vector, "a received tensor")
    return vector
