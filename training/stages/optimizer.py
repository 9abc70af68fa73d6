"""One AdamW update that leaves equal bytes on every machine (docs/protocol.md 3.6).

Invariant: weights and both moments after an update are a function, byte for byte, of the bytes
before it, the averaged gradient and the sealed norm. Each primitive operation is rounded once to
fp32; nothing is fused (no `addcmul`, no `alpha`), scalars are fp32 numbers and multiply instead of
divide (CUDA divides by a scalar through its reciprocal), and the square root goes through fp64
because `torch.sqrt` is not correctly rounded. Blocks, threads and order of blocks do not matter.

Decay is decoupled (Loshchilov and Hutter 2019) and applies to matrices: every parameter with two
dimensions decays, embedding and head among them; norm weights do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.stages.schedule import UpdateScalars

BLOCK_ELEMENTS = 2**16  # what six operands of a block need stays in a core's cache


@dataclass(frozen=True, slots=True)
class Moments:
    """First and second moment of each weight, fp32 (P,)."""

    exp_avg: Tensor
    exp_avg_sq: Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [start, end) of the flat weights, which all decay or all do not."""

    start: int
    end: int
    decays: bool


def apply_adamw(
    weights: Tensor,
    moments: Moments,
    average: Tensor,
    spans: Sequence[Span],
    scalars: UpdateScalars,
    *,
    block_elements: int = BLOCK_ELEMENTS,
) -> None:
    """Update `weights` and `moments` in place.

    Args:
        weights: fp32 (P,).
        moments: fp32 (P,) each.
        average: Averaged gradient before clipping, fp32 (P,); it is not changed.
        spans: Cover [0, P) in order.
        scalars: Of this update.
        block_elements: How many elements are worked on at a time; it does not change a byte.
    """
    with torch.no_grad():
        for span in spans:
            for start in range(span.start, span.end, block_elements):
                block = slice(start, min(start + block_elements, span.end))
                _update_block(
                    weights[block],
                    moments.exp_avg[block],
                    moments.exp_avg_sq[block],
                    average[block] * scalars.clip,
                    scalars,
                    decays=span.decays,
                )


def _update_block(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    gradient: Tensor,
    scalars: UpdateScalars,
    *,
    decays: bool,
) -> None:
    if decays:
        weights.mul_(scalars.decay)
    exp_avg.mul_(scalars.beta1).add_(gradient * scalars.one_minus_beta1)
    exp_avg_sq.mul_(scalars.beta2).add_(gradient.mul_(gradient).mul_(scalars.one_minus_beta2))
    denominator = exp_avg_sq.double().sqrt_().float()
    denominator.mul_(scalars.inverse_root_correction2).add_(scalars.epsilon)
    weights.sub_(torch.div(exp_avg, denominator).mul_(scalars.step_size))
