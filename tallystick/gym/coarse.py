"""A peer that computes with 8-bit weights, as cheaper hardware would. Needs torch.

The master weights stay as they are, so that its state is everybody's: they are rounded for the
time of a pass. A backward pass meets the same rounded weights as its forward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.around import Around
from tallystick.gym.plan import Plan
from training.worker.ports import Compute, Passed
from training.worker.stage_compute import StageCompute

LEVELS = 127  # of one sign


def rounded(weight: Tensor) -> Tensor:
    """A matrix whose rows have one scale each, and elements of 8 bits."""
    scales = weight.abs().amax(dim=-1, keepdim=True) / LEVELS
    scales = torch.where(scales == 0, 1, scales)
    return (weight / scales).round() * scales


class Coarse(Around):
    """Passes with rounded matrices."""

    def __init__(self, inner: Compute, plan: Plan) -> None:
        super().__init__(inner)
        self._plan = plan

    def forward(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        with self._rounded(step, unit):
            return self._inner.forward(step, unit, x)

    def backward(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        with self._rounded(step, unit):
            return self._inner.backward(step, unit, x, dy)

    def subtract(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> None:
        """See `Compute.subtract`."""
        with self._rounded(step, unit):
            self._inner.subtract(step, unit, x, dy)

    @contextmanager
    def _rounded(self, step: StepNumber, unit: ItemNumber) -> Iterator[None]:
        assert isinstance(self._inner, StageCompute)  # there are no weights to round elsewhere
        # `data`: autograd counts changes, and would refuse a graph whose weights were swapped.
        matrices = [weight.data for weight in self._inner.weights().values() if weight.dim() == 2]
        if not self._plan.lies_about(step, unit):
            matrices = []
        masters = [matrix.clone() for matrix in matrices]
        try:
            for matrix in matrices:
                matrix.copy_(rounded(matrix))
            yield
        finally:
            for matrix, master in zip(matrices, masters, strict=True):
                matrix.copy_(master)
