"""Peers whose gradient, mean or tensors are not what they say.

The first compute everything and show honest boundary tensors: the lie is in the gradient that is
committed to, exchanged and summed. All but `Huge` and `Scaled` are as long as the truth, so no norm
shows them. Summing peers bind themselves to a mean that is none, never longer than the norms allow.

Malformed is what no tensor may be: not finite, or longer than its header says. Digests, headers and
signatures are in order, so the bytes are bound to whom they come from.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from typing_extensions import Buffer

from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from tallystick.gym.around import Around, Planned, all_turned, resent, some_turned
from tallystick.gym.plan import Plan
from training.averaging.slices import Slice, slice_digest
from training.worker.ports import Compute, Passed, Sent

# --------------------------------------------------------------------------------------- gradients

FLIPPED = Fraction(1, 100)

Change = Callable[[Compute, StepNumber, Slice], Slice]
"""The step's compute, its number and an honest part -> the part that is sent."""


class Forged(Planned):
    """Honest, but for the parts of the gradient."""

    def __init__(self, plan: Plan, change: Change) -> None:
        super().__init__(plan)
        self._change = change

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        honest = compute.gradient()
        if not self._plan.lies_in(step):
            return honest
        return tuple(self._change(compute, step, piece) for piece in honest)


def flipped(plan: Plan, element_bytes: int) -> Forged:
    """One sign in a hundred is turned, in every part."""

    def change(compute: Compute, step: StepNumber, piece: Slice) -> Slice:
        chance = random.Random(f"{plan.seed} {step} {piece.digest.hex()}")
        return compute.mean([some_turned(piece.data, element_bytes, FLIPPED, chance)], [1])

    return Forged(plan, change)


def turned(plan: Plan, element_bytes: int) -> Forged:
    """The gradient turned around: everything that the others learn is unlearnt."""

    def change(compute: Compute, step: StepNumber, piece: Slice) -> Slice:
        return compute.mean([all_turned(piece.data, element_bytes)], [1])

    return Forged(plan, change)


def scaled(plan: Plan, times: Fraction) -> Forged:
    """The gradient multiplied; a mean by weights that do not add up to their total."""

    def change(compute: Compute, step: StepNumber, piece: Slice) -> Slice:
        return compute.mean([piece.data], [times.numerator], [times.denominator])

    return Forged(plan, change)


# ------------------------------------------------------------------------------------------- means


class WrongSum(Planned):
    """The mean turned around."""

    def __init__(self, plan: Plan, element_bytes: int) -> None:
        super().__init__(plan)
        self._element_bytes = element_bytes

    def mean(
        self,
        compute: Compute,
        step: StepNumber,
        parts: Sequence[Buffer],
        weights: Sequence[int],
        totals: Sequence[int],
    ) -> Slice:
        """See `Behaviour.mean`."""
        honest = compute.mean(parts, weights, totals)
        if not self._plan.lies_in(step):
            return honest
        return compute.mean([all_turned(honest.data, self._element_bytes)], [1])


class LeftOut(Planned):
    """The first part is not added; the others keep their weights, so the rest is not scaled up."""

    def mean(
        self,
        compute: Compute,
        step: StepNumber,
        parts: Sequence[Buffer],
        weights: Sequence[int],
        totals: Sequence[int],
    ) -> Slice:
        """See `Behaviour.mean`."""
        kept = 1 if self._plan.lies_in(step) and len(parts) > 1 else 0
        return compute.mean(parts[kept:], weights[kept:], totals[kept:])


# ------------------------------------------------------------------------------- malformed tensors

Spoil = Callable[[bytes], bytes]
_ONES = b"\xff"  # all bits set: nan in every float format, and as the scale of a block


def not_finite(data: bytes) -> bytes:
    """As many bytes, of which none is a number."""
    return _ONES * len(data)


def oversized(data: bytes) -> bytes:
    """The bytes twice."""
    return data + data


class Spoilt(Around):
    """Honest passes, whose boundary tensors nobody can then compute with."""

    def __init__(self, inner: Compute, plan: Plan, spoil: Spoil) -> None:
        super().__init__(inner)
        self._plan, self._spoil = plan, spoil

    def forward(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        return self._spoilt(step, unit, self._inner.forward(step, unit, x))

    def backward(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        return self._spoilt(step, unit, self._inner.backward(step, unit, x, dy))

    def _spoilt(self, step: StepNumber, unit: ItemNumber, passed: Passed) -> Passed:
        if not self._plan.lies_about(step, unit):
            return passed
        return replace(passed, y=self._changed(passed.y), dx=self._changed(passed.dx))

    def _changed(self, sent: Sent | None) -> Sent | None:
        return None if sent is None else resent(sent, self._spoil(sent.data))


def spoilt_parts(plan: Plan, codec: GradientCodecName, spoil: Spoil) -> Forged:
    """Parts of a gradient that nobody can add up, as long as the true ones by their own word."""

    def change(compute: Compute, step: StepNumber, piece: Slice) -> Slice:
        data = spoil(piece.data)
        return Slice(data, slice_digest(data, codec), piece.norm_squared)

    return Forged(plan, change)
