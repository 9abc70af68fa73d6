"""A peer that computes with 8-bit weights, as cheaper hardware would. Needs torch.

The master weights stay as they are, so that its state is everybody's: they are rounded for the
time of a pass. A backward pass meets the same rounded weights as its forward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from contracts.terms.items import ItemNumber
from contracts.terms.work import Leaf
from tallystick.gym.around import Liar
from training.strategies.port import Direction, RoundNumber, Source, State
from training.strategies.state_files import StageState

LEVELS = 127  # of one sign

T = TypeVar("T")


def rounded(weight: Tensor) -> Tensor:
    """A matrix whose rows have one scale each, and elements of 8 bits."""
    scales = weight.abs().amax(dim=-1, keepdim=True) / LEVELS
    scales = torch.where(scales == 0, 1, scales)
    return (weight / scales).round() * scales


class Coarse(Liar):
    """Passes with rounded matrices."""

    _matrices: tuple[Tensor, ...] = ()
    _lies = False  # in the pass that is under way

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, StageState)  # there are no weights to round elsewhere
        # `data`: autograd counts changes, and would refuse a graph whose weights were swapped.
        weights = state.stage.weights().values()
        self._matrices = tuple(weight.data for weight in weights if weight.dim() == 2)
        super().start(state, round)

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        self._lies = direction != "evaluate" and self._plan.lies_about(self._round, item)
        try:
            return await self._inner.run(item, direction, source)
        finally:
            self._lies = False

    async def computed(self, function: Callable[[], T]) -> T:
        """See `Around.computed`."""

        def work() -> T:
            with self._rounded():
                return function()

        return await super().computed(work if self._lies else function)

    @contextmanager
    def _rounded(self) -> Iterator[None]:
        masters = [matrix.clone() for matrix in self._matrices]
        try:
            for matrix in self._matrices:
                matrix.copy_(rounded(matrix))
            yield
        finally:
            for matrix, master in zip(self._matrices, masters, strict=True):
                matrix.copy_(master)
