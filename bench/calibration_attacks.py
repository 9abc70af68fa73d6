"""False answers to a peer-step, each as hard to see as its author can make it.

Unless the name says otherwise only the gradient is false: activations, dx and losses are honest, as
by a peer that computed them for speed or for looks. `half`, `most` and `int8` are really computed;
the others change the honest answer. Poison is a direction in which the model is to be pushed, the
same at all times; what it does in a step drowns in the rounding noise of bfloat16.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.calibration_devices import AVX512, Claim, PeerStep, Unit, Variant, compute, false_units
from verification.distances.thresholds import DType

HONEST = Variant(AVX512)
SKIPPED_LABEL = -100  # torch's cross entropy leaves such tokens out of the mean
INT8_CODES = 127


@dataclass(frozen=True, slots=True)
class Case:
    """What an attacker has: the peer-step, its honest answer, and that of other units."""

    step: PeerStep
    honest: Claim
    other: Claim
    dtype: DType
    seed: int

    def generator(self) -> torch.Generator:
        """Noise of this case alone."""
        return torch.Generator().manual_seed(self.seed)


Attack = Callable[[Case], Claim | None]
"""Nothing where the stage has nothing to lie about."""


def _with_gradient(case: Case, change: Callable[[Tensor], Tensor]) -> Claim:
    gradient = {name: change(tensor) for name, tensor in case.honest.gradient.items()}
    return replace(case.honest, gradient=gradient)


def _noise_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise with the norm of `tensor`."""
    noise = torch.randn(tensor.shape, generator=generator)
    scaled_noise: Tensor = noise * (tensor.norm() / noise.norm())
    return scaled_noise


def zero(case: Case) -> Claim:
    """No gradient at all."""
    return _with_gradient(case, torch.zeros_like)


def random_gradient(case: Case) -> Claim:
    """Honest activations, noise of the right norm as gradient."""
    generator = case.generator()
    return _with_gradient(case, lambda tensor: _noise_like(tensor, generator))


def stale(case: Case) -> Claim:
    """The gradient of the units before."""
    return replace(case.honest, gradient=case.other.gradient)


def half_tokens(case: Case) -> Claim:
    """Half of each row's tokens, doubled."""
    return _some_tokens(case, every=2)


def most_tokens(case: Case) -> Claim:
    """98 % of the tokens, rescaled."""
    return _some_tokens(case, every=50)


def _some_tokens(case: Case, *, every: int) -> Claim:
    """Without one token of `every`: its dy is zero, or it has no label; the rest is scaled up."""

    def skip(unit: Unit) -> Unit:
        if unit.dy_RTD is not None:
            dy_RTD = unit.dy_RTD.clone()
            dy_RTD[:, ::every] = 0
            return replace(unit, dy_RTD=dy_RTD * every / (every - 1))
        assert unit.rows_RT is not None
        rows_RT = unit.rows_RT.clone()
        rows_RT[:, 1::every] = SKIPPED_LABEL
        return replace(unit, rows_RT=rows_RT)

    cheap = compute(false_units(case.step, skip), HONEST, case.dtype)
    return replace(case.honest, gradient=cheap.gradient)


def signs(case: Case) -> Claim:
    """1 % of the signs flipped."""
    generator = case.generator()

    def flip(tensor: Tensor) -> Tensor:
        is_flipped = torch.rand(tensor.shape, generator=generator) < 0.01
        return torch.where(is_flipped, -tensor, tensor)

    return _with_gradient(case, flip)


def scaled(case: Case) -> Claim:
    """The gradient x 1.01."""
    return _with_gradient(case, lambda tensor: tensor * 1.01)


def noise(case: Case) -> Claim:
    """1 % of noise on the gradient."""
    generator = case.generator()
    return _with_gradient(case, lambda tensor: tensor + 0.01 * _noise_like(tensor, generator))


def top_only(case: Case) -> Claim:
    """The largest tenth of the entries of each tensor, the rest zero."""

    def keep(tensor: Tensor) -> Tensor:
        border = tensor.abs().flatten().quantile(0.9) if tensor.numel() < 2**24 else tensor.max()
        return torch.where(tensor.abs() >= border, tensor, torch.zeros_like(tensor))

    return _with_gradient(case, keep)


def poison(case: Case) -> Claim:
    """0.1 % of each tensor's norm in a fixed direction."""
    generator = torch.Generator().manual_seed(0)
    return _with_gradient(case, lambda tensor: tensor + 0.001 * _noise_like(tensor, generator))


def int8(case: Case) -> Claim:
    """All matrices rounded to 8 bits a row, then everything computed: y, dx, loss, gradient."""
    weights = {name: _int8(weight) for name, weight in case.step.weights.items()}
    return compute(replace(case.step, weights=weights), HONEST, case.dtype)


def _int8(weight: Tensor) -> Tensor:
    if weight.dim() != 2:
        return weight
    scale = weight.abs().amax(dim=1, keepdim=True) / INT8_CODES
    return torch.where(scale > 0, (weight / scale).round() * scale, weight)


def copied_unit(case: Case) -> Claim | None:
    """y, dx and loss of one unit stand for another's; the gradient counts it twice."""
    honest = case.honest
    if len(case.step.units) < 2:
        return None
    units = (case.step.units[0], *case.step.units[:-1])
    cheap = compute(replace(case.step, units=units), HONEST, case.dtype)
    return replace(cheap, y=(*honest.y[:1], *honest.y[:-1])) if honest.y else cheap


def scaled_output(case: Case) -> Claim | None:
    """y x 1.01, all else honest."""
    return _with_y(case, lambda y: y * 1.01)


def noisy_output(case: Case) -> Claim | None:
    """1 % of noise on y, all else honest."""
    generator = case.generator()
    return _with_y(case, lambda y: y + 0.01 * _noise_like(y, generator))


def _with_y(case: Case, change: Callable[[Tensor], Tensor]) -> Claim | None:
    if not case.honest.y:
        return None
    return replace(case.honest, y=tuple(change(y) for y in case.honest.y))


ATTACKS: Mapping[str, Attack] = {
    "zero gradient": zero,
    "random gradient, right norm": random_gradient,
    "stale gradient": stale,
    "one unit computed, copied": copied_unit,
    "half the tokens, rescaled": half_tokens,
    "98 % of tokens, rescaled": most_tokens,
    "1 % of signs flipped": signs,
    "top tenth of entries only": top_only,
    "gradient x1.01": scaled,
    "gradient + 1 % noise": noise,
    "int8 weights": int8,
    "y x1.01": scaled_output,
    "y + 1 % noise": noisy_output,
    "poison of 0.1 % norm": poison,
}
"""By the name that tables show."""
