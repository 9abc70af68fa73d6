"""Peers whose boundary tensors are honest and whose gradient is not.

They compute everything: the lie is in what is committed to, exchanged and summed. All but `Huge`
and `Scaled` are as long as the truth, so no norm shows them.
"""

import random
from collections.abc import Callable
from fractions import Fraction

from contracts.terms.ids import StepNumber
from tallystick.gym.plan import Plan
from tallystick.gym.signs import all_turned, some_turned
from training.averaging.slices import Slice
from training.worker.ports import Compute, Honest

FLIPPED = Fraction(1, 100)

Change = Callable[[Compute, StepNumber, Slice], Slice]
"""The step's compute, its number and an honest part -> the part that is sent."""


class Forged(Honest):
    """Honest, but for the parts of the gradient."""

    def __init__(self, plan: Plan, change: Change) -> None:
        self._plan, self._change = plan, change

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
