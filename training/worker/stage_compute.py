"""A worker's arithmetic with torch: one stage of the job's model on one device.

Everything that decides its numbers comes from the signed JobSpec; see `training.stages.stage` for
what is equal byte for byte, and on what that depends (device and number of threads).

A sender goes on with its true activations, a receiver with what the codec left of them: the
gradient passes the codec as if it were not there (straight-through). Both are functions of the
bytes that came in, so a replay from bytes repeats every byte.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import NotFinite, NotFound, Refused
from contracts.terms.ids import Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import LOSS_SCALE, JobSpec
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.compression.codecs import codec as codec_named
from training.config import slices_of, train_config
from training.data.loading import BlobSource, CheckedBlobs, UnitRows, rows_digest
from training.data.manifest import decode_manifest
from training.models.starting import starting_weights
from training.stages.checkpoint import (
    adopt_checkpoint,
    checkpoint_path,
    list_checkpoints,
    load_newest,
    save_checkpoint,
)
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.stages.validation import VALIDATION_ROWS, group_rows, num_groups
from training.worker.ports import Passed, Roots, Sent

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
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        pieces = slices_of(config.model, spec.batch.layer_ends)
        if stage >= len(pieces):
            raise Refused(f"the job has {len(pieces)} stages, there is no stage {stage}")
        manifest = decode_manifest(CheckedBlobs(blobs).fetch(spec.data.manifest))
        weights = starting_weights(spec.model, config.model, pieces[stage], blobs)
        self._stage = Stage(
            config.model, pieces[stage], config.optimizer, device=device, weights=weights
        )
        self._rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)
        self._batch, self._model = spec.batch, config.model
        self._boundary = codec_named(spec.rules.boundary_codec)
        self._codec = spec.rules.gradient_codec
        self._x: dict[UnitId, Digest] = {}  # of the kept graphs' inputs

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
        inputs, name = self._inputs(self._rows_of(step, unit), x)
        y_RTD = self._stage.forward(unit, inputs)
        self._x[unit] = name
        return Passed(name, y=self._sent(y_RTD))

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
        dy_RTD = None if dy is None else self._boundary.decode(dy, self._shape)
        if self.keeps(unit):
            output, name = None, self._x.pop(unit)
        else:
            inputs, name = self._inputs(self._rows_of(step, unit), x)
            output = self._stage.forward(unit, inputs)
        dx_RTD = self._stage.backward(unit, dy_RTD)
        return Passed(
            name,
            y=None if output is None or self.is_last else self._sent(output),
            dx=None if dx_RTD is None else self._sent(dx_RTD),
            loss=_millionths(output) if output is not None and self.is_last else None,
        )

    def subtract(self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> None:
        """See `Compute.subtract`."""
        inputs, _ = self._inputs(self._rows_of(step, unit), x)
        dy_RTD = None if dy is None else self._boundary.decode(dy, self._shape)
        self._stage.subtract(unit, dy_RTD, inputs)

    def evaluate(self, group: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.evaluate`."""
        if group >= num_groups(self._batch.rows_per_unit):
            raise Refused(f"there is no group {group} of validation rows")
        all_rows = self._rows.validation_rows(VALIDATION_ROWS)
        rows = group_rows(all_rows, group, self._batch.rows_per_unit)
        inputs, name = self._inputs(rows, x)
        if not self.is_last:
            return Passed(name, y=self._sent(self._stage.outputs(inputs)))
        rows_RT = self._tokens(rows)
        taken = rows_RT[:, :-1] if inputs.x_RTD is None else inputs.x_RTD
        return Passed(name, loss=_millionths(self._stage.losses(taken, rows_RT[:, 1:]).mean()))

    def measure(self, seed: int) -> None:
        """See `Compute.measure`."""
        self._stage.measure(seed, self._batch.rows_per_unit)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return (self._batch.rows_per_unit, self._model.sequence_length, self._model.width)

    def _rows_of(self, step: StepNumber, unit: UnitId) -> tuple[bytes, ...] | None:
        return self._rows.load(step, unit) if self.is_first or self.is_last else None

    def _tokens(self, rows: Sequence[bytes]) -> Tensor:
        return rows_tensor(rows, token_bytes=self._rows.token_bytes)

    def _inputs(self, rows: Sequence[bytes] | None, x: Buffer | None) -> tuple[UnitInputs, Digest]:
        """What the stage computes from, and the digest that its leaf names."""
        ends = self.is_first or self.is_last
        rows_RT = self._tokens(rows) if rows is not None and ends else None
        if x is None:
            if rows is None or not self.is_first:
                raise Refused("x comes with every unit but the first stage's")
            name = rows_digest(rows, token_bytes=self._rows.token_bytes)
            return UnitInputs(rows_RT=rows_RT), name
        inputs = UnitInputs(rows_RT=rows_RT, x_RTD=self._boundary.decode(x, self._shape))
        return inputs, tensor_digest(self._boundary.dtype_name, self._shape, x)

    def _sent(self, tensor_RTD: Tensor) -> Sent:
        data, name = self._boundary.encode(tensor_RTD), self._boundary.dtype_name
        return Sent(data, tensor_digest(name, self._shape, data), name, self._shape)

    # ----------------------------------------------------------------------------------- chunks

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        parts = self._stage.gradient_parts(self._batch.chunks)
        return tuple(slice_of(part, self._codec) for part in parts)

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

    def roots(self) -> Roots:
        """See `Compute.roots`."""
        roots = self._stage.roots()
        return Roots(roots.state, roots.weights)

    def weights(self) -> dict[str, Tensor]:
        """All parameters by name; they share the stage's memory."""
        return self._stage.weights()

    def save(self, folder: Path, step: StepNumber) -> None:
        """See `Compute.save`."""
        save_checkpoint(self._stage, folder, step)

    def restore(self, folder: Path) -> StepNumber:
        """See `Compute.restore`."""
        info, _ = load_newest(self._stage, folder)
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
        return StepNumber(int(kept[0].stem.removeprefix("step-")) if kept else 0)


def _millionths(loss: Tensor) -> int:
    value = float(loss)
    if not math.isfinite(value):
        raise NotFinite("a loss is not finite")
    return round(value * LOSS_SCALE)
