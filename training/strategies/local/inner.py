"""The steps that a replica takes by itself in one round, with torch.

A replica starts each round from nothing but sealed state, so that whoever has the seal can replay
it: its weights are the sealed ones. Its moments (AdamW) are zero (`moments: restart`): then the
first moment is used without bias correction, and the rate rises over the first steps, as Adam's
first steps are sign descent, whose root mean square is 1 instead of about 0.2. Or they are sealed
means of all replicas' (`moments: mean`), and all is as in AdamW without rounds.

A round of DiLoCo (arXiv 2311.08105, algorithm 1, lines 3 to 10) is `start`, H times `step`,
`difference`. There each replica carries its moments through the job, which nobody else can repeat.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contracts.terms.errors import NotFinite
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE, NORM_SCALE
from training.config import OptimizerConfig
from training.stages.exact import Moments
from training.stages.stage import Stage, UnitInputs
from training.stages.torch_free import UpdateScalars, fp32, learning_rate, power, update_scalars
from training.strategies.local.trace import SCALE, TracedStep, projections

REWARM_STEPS = 5


def inner_scalars(
    config: OptimizerConfig, *, first: int, step: int, norm: float, rewarm_steps: int = REWARM_STEPS
) -> UpdateScalars:
    """What an inner step multiplies with.

    Args:
        config: Of the inner optimiser; its schedule counts all inner steps of the job.
        first: Inner steps of the job before this round.
        step: Number of the step in the round, from 0.
        norm: Of the replica's own gradient.
        rewarm_steps: Over which the rate rises in each round.
    """
    scalars = update_scalars(config, first + step, round(norm * NORM_SCALE))
    rate = learning_rate(config, first + step) * min(1.0, (step + 1) / rewarm_steps)
    return replace(
        scalars,
        decay=fp32(1.0 - rate * config.weight_decay),
        inverse_root_correction2=fp32((1.0 - power(config.beta2, step + 1)) ** -0.5),
        step_size=fp32(rate),
    )


class Replica:
    """One round of inner steps on a stage that holds the sealed state. Not thread-safe."""

    def __init__(self, stage: Stage, *, rewarm_steps: int = REWARM_STEPS) -> None:
        self._stage, self._rewarm_steps = stage, rewarm_steps
        self._base, self._is_restart = torch.empty(0), True
        self._first = self._num_steps = 0

    def start(self, first: int, sealed: Moments | None = None) -> None:
        """Begin a round on the stage's present weights; `first` inner steps were done before.

        Args:
            first: By the schedule.
            sealed: Means of moments to go on from; None: from zero.
        """
        self._base, self._is_restart = self._stage.flat_weights.clone(), sealed is None
        self._first, self._num_steps = first, 0
        _, exp_avg, exp_avg_sq = self.vectors
        if sealed is None:
            exp_avg.zero_()
            exp_avg_sq.zero_()
        else:
            exp_avg.copy_(sealed.exp_avg)
            exp_avg_sq.copy_(sealed.exp_avg_sq)

    def step(
        self,
        items: Mapping[ItemNumber, UnitInputs],
        seed: bytes = b"",
        *,
        look: Callable[[Tensor], None] | None = None,
    ) -> TracedStep:
        """Take one inner step on the mean gradient of some items; returns what a leaf says of it.

        Args:
            items: Of equally many rows each.
            seed: Of the projections, 32 bytes; without one the trace has none.
            look: Is shown the gradient.

        Raises:
            NotFinite: a loss or a gradient is inf or nan; the step is not taken.
        """
        loss, gradient = self.gradient(items)
        norm = float(torch.linalg.vector_norm(gradient))
        if not norm < math.inf:
            raise NotFinite("the norm of a gradient is not finite")
        if look is not None:
            look(gradient)
        self._stage.update([gradient], self._scalars(norm))
        self._num_steps += 1
        return TracedStep(
            loss=round(LOSS_SCALE * loss),
            norm=round(SCALE * norm),
            projections=projections(gradient, seed) if seed else (),
        )

    def _scalars(self, norm: float) -> UpdateScalars:
        if not self._is_restart:
            step = self._first + self._num_steps
            return update_scalars(self._stage.optimizer, step, round(norm * NORM_SCALE))
        return inner_scalars(
            self._stage.optimizer,
            first=self._first,
            step=self._num_steps,
            norm=norm,
            rewarm_steps=self._rewarm_steps,
        )

    def gradient(self, items: Mapping[ItemNumber, UnitInputs]) -> tuple[float, Tensor]:
        """Mean loss of some items, nats, and its gradient, fp32 (P,); raises NotFinite."""
        self._stage.begin_step()
        losses = []
        for item, inputs in items.items():
            losses.append(float(self._stage.forward(item, inputs)))
            self._stage.backward(item)
        return sum(losses) / len(losses), torch.cat(list(self._stage.mean_buckets(1)))

    def rebase(self, weights: Tensor) -> None:
        """Go on from the sealed weights, fp32 (P,), that have replaced those at the start.

        What was changed since then stays: w += W_new - W_old. Moments stay too.
        """
        self._stage.flat_weights.add_(weights - self._base)
        self._base.copy_(weights)

    def began_with(self, weights: Tensor) -> bool:
        """Whether the round began with these weights."""
        return torch.equal(self._base, weights)

    @property
    def num_steps(self) -> int:
        """Inner steps of this round so far."""
        return self._num_steps

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a step changes: weights and both moments, (P,); they share the stage's memory."""
        moments = self._stage.flat_moments
        return self._stage.flat_weights, moments.exp_avg, moments.exp_avg_sq

    def go_on(self, num_steps: int) -> None:
        """After `start`: `vectors` were replaced by those after so many steps of the round."""
        self._num_steps = num_steps

    def difference(self) -> Tensor:
        """Weights at the start of the round minus the present ones, fp32 (P,).

        After a start from sealed moments fp32 (3P,): then the first moments, and the roots of the
        second ones.
        """
        weights, exp_avg, exp_avg_sq = self.vectors
        difference = self._base - weights
        if self._is_restart:
            return difference
        return torch.cat([difference, exp_avg, exp_avg_sq.sqrt()])
