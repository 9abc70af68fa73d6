"""The numbers of one optimiser update: learning rate, clip, decay, bias corrections. Torch-free.

Invariant: equal (config, update, sealed norm) give equal bits on every machine. Only operations
that IEEE 754 rounds correctly are used (no `pow`, no `cos`: mathematical libraries differ in the
last bit), and every scalar is rounded to fp32 before it meets a tensor.

`update` counts applied updates from 0, so that a step without update moves nothing.
"""

import math
import struct
from dataclasses import dataclass
from fractions import Fraction

from contracts.terms.messages import NORM_SCALE
from training.config import OptimizerConfig

_ONE = 2**64
_HALF_PI = 28976077832308491370  # pi / 2 in units of 2**-64
_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True)
class UpdateScalars:
    """What one update multiplies with; each value is an fp32 number."""

    clip: float  # scale of the averaged gradient, at most 1
    decay: float  # 1 - learning rate x weight decay, for matrices
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    inverse_root_correction2: float  # 1 / sqrt(1 - beta2^t)
    epsilon: float
    step_size: float  # learning rate / (1 - beta1^t)


def learning_rate(config: OptimizerConfig, update: int) -> float:
    """Rate of update number `update`: linear warm-up, then constant or half a cosine."""
    peak = Fraction(config.learning_rate)
    if update < config.warmup_steps:
        return float(peak * Fraction(update + 1, config.warmup_steps))
    if config.schedule == "constant":
        return config.learning_rate
    span = max(1, config.total_steps - config.warmup_steps)
    progress = min(update - config.warmup_steps, span)
    final = Fraction(config.final_ratio)
    return float(peak * (final + (1 - final) * _half_cosine(progress, span)))


def _half_cosine(progress: int, span: int) -> Fraction:
    # (1 + cos(pi p)) / 2 = cos(pi p / 2)^2, by Taylor's series in whole units of 2**-64.
    angle = _HALF_PI * progress // span
    square = angle * angle // _ONE
    term = total = _ONE
    for k in range(1, 16):
        term = -term * square // (_ONE * (2 * k - 1) * 2 * k)
        total += term
    return Fraction(max(0, total) ** 2, _ONE**2)


def clip_factor(config: OptimizerConfig, sealed_norm: int) -> float:
    """What the averaged gradient is multiplied with; `sealed_norm` is in 1e-9."""
    if not config.clip_norm:
        return 1.0
    return min(1.0, config.clip_norm / (sealed_norm / NORM_SCALE + _CLIP_EPSILON))


def power(base: float, exponent: int) -> float:
    """`base` to a whole power by repeated squaring, the same bits everywhere."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def update_scalars(config: OptimizerConfig, update: int, sealed_norm: int) -> UpdateScalars:
    """Scalars of update number `update`, for an averaged gradient of `sealed_norm` (1e-9)."""
    rate = learning_rate(config, update)
    correction1 = 1.0 - power(config.beta1, update + 1)
    correction2 = 1.0 - power(config.beta2, update + 1)
    return UpdateScalars(
        clip=_fp32(clip_factor(config, sealed_norm)),
        decay=_fp32(1.0 - rate * config.weight_decay),
        beta1=_fp32(config.beta1),
        one_minus_beta1=_fp32(1.0 - config.beta1),
        beta2=_fp32(config.beta2),
        one_minus_beta2=_fp32(1.0 - config.beta2),
        inverse_root_correction2=_fp32(1.0 / math.sqrt(correction2)),
        epsilon=_fp32(config.epsilon),
        step_size=_fp32(rate / correction1),
    )


def _fp32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
