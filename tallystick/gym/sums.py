"""Summing peers that bind themselves to a mean that is none, never longer than the norms allow."""

from collections.abc import Sequence

from typing_extensions import Buffer

from contracts.terms.ids import StepNumber
from tallystick.gym.plan import Plan
from tallystick.gym.signs import all_turned
from training.averaging.slices import Slice
from training.worker.ports import Compute, Honest


class WrongSum(Honest):
    """The mean turned around."""

    def __init__(self, plan: Plan, element_bytes: int) -> None:
        self._plan, self._element_bytes = plan, element_bytes

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


class LeftOut(Honest):
    """The first part is not added; the others keep their weights, so the rest is not scaled up."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

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
