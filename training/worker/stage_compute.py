"""A worker's arithmetic with torch: one stage of the job's model on one device.

Everything that decides its numbers comes from the signed JobSpec; see `training.stages.stage` for
what is equal byte for byte, and on what that depends (device and number of threads).
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from typing_extensions import Buffer

from contracts.terms.errors import Refused
from contracts.terms.ids import ZERO_DIGEST, StageIndex, StepNumber, UnitId
from contracts.terms.messages import LOSS_SCALE, JobSpec, UnitLeaf
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.config import even_slices, train_config
from training.data.loading import BlobSource, CheckedBlobs, UnitRows, rows_digest
from training.data.manifest import decode_manifest
from training.stages.checkpoint import list_checkpoints, load_newest, save_checkpoint
from training.stages.evaluation import mean_loss
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.worker.ports import Roots

VALIDATION_ROWS = 128
_ONLY_STAGE = StageIndex(0)


class StageCompute:
    """Satisfies `ports.Compute` with the whole model in one stage."""

    def __init__(
        self,
        spec: JobSpec,
        blobs: BlobSource,
        *,
        stage: StageIndex = _ONLY_STAGE,
        device: str = "cpu",
        validation_rows: int = VALIDATION_ROWS,
    ) -> None:
        """Build the stage at its initial weights; fetches the manifest.

        Raises:
            Refused: more than one stage, or a spec that does not fit itself.
            NotFound, ServiceUnreachable, WrongBytes: the manifest.
        """
        if spec.batch.stages != 1:
            raise Refused("this version trains the whole model in one stage")
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        manifest = decode_manifest(CheckedBlobs(blobs).fetch(spec.data.manifest))
        piece = even_slices(config.model, spec.batch.stages)[stage]
        self._stage = Stage(config.model, piece, config.optimizer, device=device)
        self._rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)
        self._num_chunks = spec.batch.chunks
        self._validation_rows = validation_rows

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._stage.begin_step()

    @property
    def units(self) -> tuple[UnitId, ...]:
        """See `Compute.units`."""
        return self._stage.units

    def add_unit(self, step: StepNumber, unit: UnitId) -> UnitLeaf:
        """See `Compute.add_unit`."""
        rows = self._rows.load(step, unit)
        loss = self._stage.forward(unit, UnitInputs(rows_RT=rows_tensor(rows)))
        self._stage.backward(unit)
        return UnitLeaf(
            unit=unit,
            x=rows_digest(rows),
            y=ZERO_DIGEST,
            dy=ZERO_DIGEST,
            dx=ZERO_DIGEST,
            loss=round(float(loss) * LOSS_SCALE),
        )

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        return tuple(slice_of(part) for part in self._stage.gradient_parts(self._num_chunks))

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int]) -> Slice:
        """See `Compute.mean`."""
        return mean_slice(parts, weights)

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """See `Compute.apply`."""
        self._stage.apply(torch.cat([vector_of(chunk) for chunk in chunks]), sealed_norm)

    def roots(self) -> Roots:
        """See `Compute.roots`."""
        roots = self._stage.roots()
        return Roots(roots.state, roots.weights)

    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters by name; they share the stage's memory."""
        return self._stage.weights()

    def save(self, folder: Path, step: StepNumber) -> None:
        """See `Compute.save`."""
        save_checkpoint(self._stage, folder, step)

    def restore(self, folder: Path) -> StepNumber:
        """See `Compute.restore`."""
        info, _ = load_newest(self._stage, folder)
        return StepNumber(info.step if info else 0)

    def oldest_kept(self, folder: Path) -> StepNumber:
        """See `Compute.oldest_kept`."""
        kept = list_checkpoints(folder)
        return StepNumber(int(kept[0].stem.removeprefix("step-")) if kept else 0)

    def validation_loss(self) -> int:
        """See `Compute.validation_loss`."""
        rows = self._rows.validation_rows(self._validation_rows)
        return round(mean_loss(self._stage, rows) * LOSS_SCALE)
