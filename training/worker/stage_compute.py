"""A worker's arithmetic with torch: one stage of the job's model on one device.

Everything that decides its numbers comes from the signed JobSpec; see `training.stages.stage` for
what is equal byte for byte, and on what that depends (device and number of threads).

A sender goes on with its true activations, a receiver with what the codec left of them: the
gradient passes the codec as if it were not there (straight-through). Both are functions of the
bytes that came in, so a replay from bytes repeats every byte.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import NotFound, Refused
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import JobSpec
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, vector_of
from training.data.loading import BlobSource
from training.models.starting import starting_weights
from training.stages.checkpoint import (
    adopt_checkpoint,
    checkpoint_path,
    list_checkpoints,
    load_newest,
    roots_of_weights,
    save_checkpoint,
    save_weights,
)
from training.stages.stage import Stage
from training.stages.torch_free import (
    VALIDATION_ROWS,
    StateRoots,
    chunk_elements,
    group_rows,
    num_groups,
)
from training.worker.numeric_recipe import NumericRecipe, corpus_rows, millionths
from training.worker.ports import Passed
from training.worker.stage_replay import StageReplayer

_ONLY_STAGE = StageIndex(0)


class StageCompute:
    """Satisfies `ports.Compute` with one stage of the job's model."""

    def __init__(
        self,
        spec: JobSpec,
        blobs: BlobSource,
        *,
        stage: StageIndex = _ONLY_STAGE,
        device: str = "cpu",
    ) -> None:
        """Build the stage at the weights that it starts from; fetches the manifest.

        Raises:
            Refused: no such stage, or a spec that does not fit itself.
            NotFound, ServiceUnreachable, WrongBytes: the manifest, or the weights.
            Malformed, NotFinite: the weights do not fit the model.
        """
        self._rows = corpus_rows(spec, blobs)
        self._recipe = recipe = NumericRecipe(spec, self._rows, stage)
        model, self._device = recipe.config.model, device
        weights = starting_weights(spec.model, model, recipe.slice, blobs)
        self._stage = Stage(
            model, recipe.slice, recipe.config.optimizer, device=device, weights=weights
        )
        self._batch, self._codec = recipe.batch, recipe.gradient_codec
        chunks, elements = spec.chunking.of_stage(stage), chunk_elements(spec)
        self._num_elements = {chunk[1]: elements[chunk] for chunk in chunks}
        self._x: dict[UnitId, Digest] = {}  # of the kept graphs' inputs

    def num_elements(self, chunk: ChunkIndex) -> int:
        """See `Compute.num_elements`."""
        return self._num_elements[chunk]

    @property
    def is_first(self) -> bool:
        """See `Compute.is_first`."""
        return self._stage.slice.has_embedding

    @property
    def is_last(self) -> bool:
        """See `Compute.is_last`."""
        return self._stage.slice.has_head

    # ------------------------------------------------------------------------------------ units

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._x.clear()
        self._stage.begin_step()

    @property
    def units(self) -> tuple[UnitId, ...]:
        """See `Compute.units`."""
        return self._stage.units

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        if unit in self._stage.units:
            raise Refused(f"unit {unit} is counted already", unit=unit)
        if self.is_last:
            return self.backward(step, unit, x, None)
        inputs, name = self._recipe.inputs(step, unit, x)
        y_RTD = self._stage.forward(unit, inputs)
        self._x[unit] = name
        return Passed(name, y=self._recipe.sent(y_RTD))

    def input_name(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Digest:
        """See `Compute.input_name`."""
        return self._recipe.inputs(step, unit, x)[1]

    def keeps(self, unit: UnitId) -> bool:
        """See `Compute.keeps`."""
        return unit in self._x and self._stage.keeps(unit)

    def forget(self, unit: UnitId) -> None:
        """See `Compute.forget`."""
        self._x.pop(unit, None)
        self._stage.forget(unit)

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        dy_RTD = None if dy is None else self._recipe.boundary(dy)
        if self.keeps(unit):
            output, name = None, self._x.pop(unit)
        else:
            inputs, name = self._recipe.inputs(step, unit, x)
            output = self._stage.forward(unit, inputs)
        dx_RTD = self._stage.backward(unit, dy_RTD)
        return Passed(
            name,
            y=None if output is None or self.is_last else self._recipe.sent(output),
            dx=None if dx_RTD is None else self._recipe.sent(dx_RTD),
            loss=millionths(output) if output is not None and self.is_last else None,
        )

    def subtract(self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> None:
        """See `Compute.subtract`."""
        inputs, _ = self._recipe.inputs(step, unit, x)
        dy_RTD = None if dy is None else self._recipe.boundary(dy)
        self._stage.subtract(unit, dy_RTD, inputs)

    def evaluate(self, group: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.evaluate`."""
        if group >= num_groups(self._batch.rows_per_unit):
            raise Refused(f"there is no group {group} of validation rows")
        all_rows = self._rows.validation_rows(VALIDATION_ROWS)
        rows = group_rows(all_rows, group, self._batch.rows_per_unit)
        inputs, name = self._recipe.inputs_from(rows, x)
        if not self.is_last:
            return Passed(name, y=self._recipe.sent(self._stage.outputs(inputs)))
        rows_RT = self._recipe.tokens(rows)
        taken = rows_RT[:, :-1] if inputs.x_RTD is None else inputs.x_RTD
        return Passed(name, loss=millionths(self._stage.losses(taken, rows_RT[:, 1:]).mean()))

    def measure(self, seed: int) -> None:
        """See `Compute.measure`."""
        self._stage.measure(seed, self._batch.rows_per_unit)

    # ----------------------------------------------------------------------------------- chunks

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        return self._recipe.parts(self._stage)

    def mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int] = ()
    ) -> Slice:
        """See `Compute.mean`."""
        return mean_slice(parts, weights, self._codec, totals=totals)

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """See `Compute.apply`."""
        average = torch.cat([vector_of(chunk, self._codec) for chunk in chunks])
        self._stage.apply(average, sealed_norm)
        self._x.clear()

    # ------------------------------------------------------------------------------------ state

    def roots(self) -> StateRoots:
        """See `Compute.roots`."""
        return self._stage.roots()

    def replayer(self) -> StageReplayer:
        """See `Compute.replayer`."""
        return StageReplayer(self._recipe, device=self._device)

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """See `Compute.save_weights`."""
        save_weights(self._stage, file, roots)

    def roots_of_weights(self, file: Path) -> StateRoots:
        """See `Compute.roots_of_weights`."""
        return roots_of_weights(file)

    def weights(self) -> dict[str, Tensor]:
        """All parameters by name; they share the stage's memory."""
        return self._stage.weights()

    def save(self, folder: Path, step: StepNumber) -> None:
        """See `Compute.save`."""
        save_checkpoint(self._stage, folder, step)

    def restore(self, folder: Path) -> StepNumber:
        """See `Compute.restore`."""
        info = load_newest(self._stage, folder)
        return StepNumber(info.step if info else 0)

    def checkpoint(self, folder: Path, step: StepNumber) -> Path:
        """See `Compute.checkpoint`."""
        path = checkpoint_path(folder, step)
        if not path.exists():
            raise NotFound(f"no checkpoint of step {step}")
        return path

    def adopt(self, folder: Path, step: StepNumber, file: Path, root: Digest | None) -> None:
        """See `Compute.adopt`."""
        adopt_checkpoint(self._stage, folder, step, file, sealed_root=root)
        self._x.clear()

    def oldest_kept(self, folder: Path) -> StepNumber:
        """See `Compute.oldest_kept`."""
        kept = list_checkpoints(folder)
        return StepNumber(int(kept[0].stem.removeprefix("step-")) if len(kept) > 1 else 0)
