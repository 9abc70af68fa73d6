"""A peer that computes with 8-bit weights, as cheaper hardware would. Needs torch.

The master weights stay as they are, so that its state is everybody's: they are rounded for the
time of a pass. A backward pass meets the same rounded weights as its forward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor

from contracts.terms.items import ItemNumber
from contracts.terms.work import Leaf
from tallystick.gym.around import Around
from tallystick.gym.plan import Plan
from training.strategies.every_step.state import StageState
from training.strategies.port import Compute, Direction, RoundNumber, Source, State, Strategy

LEVELS = 127  # of one sign

T = TypeVar("T")
_LIES: ContextVar[bool] = ContextVar("_LIES", default=False)
"""Whether the pass that is under way is one with rounded weights."""


def rounded(weight: Tensor) -> Tensor:
    """A matrix whose rows have one scale each, and elements of 8 bits."""
    scales = weight.abs().amax(dim=-1, keepdim=True) / LEVELS
    scales = torch.where(scales == 0, 1, scales)
    return (weight / scales).round() * scales


class Coarse(Around):
    """Passes with rounded matrices."""

    def __init__(self, inner: Strategy, plan: Plan) -> None:
        super().__init__(inner)
        self._plan = plan
        self._weights: tuple[Tensor, ...] = ()
        strategy: Any = inner
        self._compute: Compute = strategy.compute
        strategy.compute = self._computing

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, StageState)  # there are no weights to round elsewhere
        self._weights = tuple(state.stage.weights().values())
        super().start(state, round)

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        lies = direction != "evaluate" and self._plan.lies_about(self._round, item)
        before = _LIES.set(lies)
        try:
            return await self._inner.run(item, direction, source)
        finally:
            _LIES.reset(before)

    async def _computing(self, function: Callable[[], T]) -> T:
        lies = _LIES.get()

        def work() -> T:
            with self._rounded(self._weights if lies else ()):
                return function()

        return await self._compute(work)

    @contextmanager
    def _rounded(self, weights: tuple[Tensor, ...]) -> Iterator[None]:
        # `data`: autograd counts changes, and would refuse a graph whose weights were swapped.
        matrices = [weight.data for weight in weights if weight.dim() == 2]
        masters = [matrix.clone() for matrix in matrices]
        try:
            for matrix in matrices:
                matrix.copy_(rounded(matrix))
            yield
        finally:
            for matrix, master in zip(matrices, masters, strict=True):
                matrix.copy_(master)
