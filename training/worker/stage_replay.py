"""A peer-step once more, with torch: the same weights, the same bytes, in the order of the leaves.

Invariants: its `Stage` has weights and gradient of its own (8 bytes a parameter, no moments), so
the step in work is not touched; whoever replays units in the order in which they were added, on the
same kind of device with the same number of threads, repeats every byte of y, dx, loss and gradient.
Another order, other threads or another device differ in the last digits; how far is for calibration
to say (`verification.distances.calibration`).
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import Malformed, NotFinite
from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ItemNumber
from training.averaging.slices import Slice
from training.stages.checkpoint import load_weights
from training.stages.exact import to_wire
from training.stages.stage import Stage
from training.worker.numeric_recipe import NumericRecipe, millionths
from training.worker.ports import Numbers, ReplayedUnit, Rows
from training.worker.projections import Projector


class StageReplayer:
    """Satisfies `ports.Replayer`; shares its recipe, so its calls are for the same thread."""

    def __init__(self, recipe: NumericRecipe, *, device: str = "cpu") -> None:
        self._recipe, self._device = recipe, device

    def need_weights(self, weights: Path, state_root: Digest) -> None:
        """See `Replayer.need_weights`."""
        load_weights(weights, self._recipe.parameter_shapes, state_root)

    def begin(
        self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes
    ) -> "StageReplay":
        """See `Replayer.begin`."""
        recipe = self._recipe
        stage = Stage(
            recipe.config.model,
            recipe.slice,
            recipe.config.optimizer,
            device=self._device,
            weights=load_weights(weights, recipe.parameter_shapes, state_root),
            trains=False,
        )
        return StageReplay(recipe, stage, step, Projector(seed, stage.num_parameters))


class StageReplay:
    """Satisfies `ports.Replay`; made by `StageReplayer.begin`."""

    def __init__(
        self, recipe: NumericRecipe, stage: Stage, step: StepNumber, projector: Projector
    ) -> None:
        self._recipe, self._stage, self._step = recipe, stage, step
        self._projector = projector

    def unit(self, unit: ItemNumber, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """See `Replay.unit`."""
        rows = self._recipe.rows(self._step, unit)
        try:
            return self._computed(unit, rows, x, dy)
        except (Malformed, NotFinite):
            return ReplayedUnit(unit, rows, is_finite=False)

    def _computed(
        self, unit: ItemNumber, rows: Rows | None, x: Buffer | None, dy: Buffer | None
    ) -> ReplayedUnit:
        recipe, is_last = self._recipe, self._recipe.slice.has_head
        inputs, name = recipe.inputs(self._step, unit, x)
        output = self._stage.forward(unit, inputs)
        dx_RTD = self._stage.backward(unit, None if dy is None else recipe.boundary(dy))
        return ReplayedUnit(
            unit,
            rows,
            name,
            y=None if is_last else recipe.sent(output),
            dx=None if dx_RTD is None else recipe.sent(dx_RTD),
            loss=millionths(output) if is_last else None,
            projection=self._projector.of(self._stage.gradient_sum.cpu().numpy()),
        )

    def gradient(self) -> tuple[Slice, ...]:
        """See `Replay.gradient`."""
        return self._recipe.parts(self._stage)

    def boundary(self, data: Buffer) -> Numbers:
        """See `Replay.boundary`."""
        return _numbers(self._recipe.boundary(data))

    def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> dict[str, Numbers]:
        """See `Replay.parameters`."""
        gradient = self._recipe.gradient(parts, norms_squared)
        return {name: _numbers(tensor) for name, tensor in gradient.items()}


def _numbers(tensor: Tensor) -> Numbers:
    return Numbers(tuple(tensor.shape), to_wire(tensor))
