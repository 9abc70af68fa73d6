"""How a job's bytes become what a stage computes with, and back: its numeric recipe, with torch.

Invariant: a function of the signed spec and of the bytes alone, so that whoever repeats a unit from
the bytes repeats the numbers; passes, subtractions and replays all go through here.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Malformed, NotFinite, Refused, WrongBytes
from contracts.terms.ids import Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE, JobSpec
from training.averaging.slices import Slice
from training.averaging.sums import slice_of, vector_of
from training.compression.codecs import codec as codec_named
from training.config import slices_of, train_config
from training.data.loading import BlobSource, CheckedBlobs, RowSource, UnitRows, rows_digest
from training.data.manifest import decode_manifest
from training.models.parameters import Shape, parameter_shapes
from training.stages.exact import norm_squared
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.worker.ports import Rows, Sent


class NumericRecipe:
    """Of one stage of one job. Not thread-safe: it reads rows through a cache."""

    def __init__(self, spec: JobSpec, rows: RowSource, stage: StageIndex) -> None:
        """Of the job's `rows`: see `corpus_rows`.

        Raises:
            Refused: no such stage, or a spec that does not fit itself.
        """
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        pieces = slices_of(config.model, spec.batch.layer_ends)
        if stage >= len(pieces):
            raise Refused(f"the job has {len(pieces)} stages, there is no stage {stage}")
        self.config, self.slice = config, pieces[stage]
        self.batch, self.gradient_codec = spec.batch, spec.rules.gradient_codec
        self._rows = rows
        self._boundary = codec_named(spec.rules.boundary_codec)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a boundary tensor: rows, tokens, width."""
        model = self.config.model
        return (self.batch.rows_per_unit, model.sequence_length, model.width)

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Of the stage's parameters by name, in the order of its flat vectors."""
        return parameter_shapes(self.config.model, self.slice)

    # ------------------------------------------------------------------------------------ units

    def inputs(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None
    ) -> tuple[UnitInputs, Digest]:
        """What the stage computes a unit from, and the digest that its leaf names.

        Raises:
            Refused: x is missing or too many. Malformed: it has another size.
            NotFound, ServiceUnreachable, WrongBytes: the unit's rows.
        """
        return self.inputs_from(self._rows.load(step, unit) if self._has_rows else None, x)

    @property
    def _has_rows(self) -> bool:
        return self.slice.has_embedding or self.slice.has_head

    def inputs_from(
        self, rows: Sequence[bytes] | None, x: Buffer | None
    ) -> tuple[UnitInputs, Digest]:
        """As `inputs`, from rows that are here; only the first and the last stage look at them."""
        rows_RT = self.tokens(rows) if rows is not None and self._has_rows else None
        if x is None:
            if rows is None or not self.slice.has_embedding:
                raise Refused("x comes with every unit but the first stage's")
            return UnitInputs(rows_RT=rows_RT), rows_digest(rows, token_bytes=self._token_bytes)
        inputs = UnitInputs(rows_RT=rows_RT, x_RTD=self.boundary(x))
        return inputs, tensor_digest(self._boundary.dtype_name, self.shape, x)

    def rows(self, step: StepNumber, unit: ItemNumber) -> Rows | None:
        """What a unit reads of the corpus; None on a stage that reads nothing. As `inputs`."""
        if not self._has_rows:
            return None
        rows = self._rows.load(step, unit)
        return Rows(b"".join(rows), rows_digest(rows, token_bytes=self._token_bytes))

    def tokens(self, rows: Sequence[bytes]) -> Tensor:
        """Rows as (R, T + 1) int64."""
        return rows_tensor(rows, token_bytes=self._token_bytes)

    @property
    def _token_bytes(self) -> int:
        return self._rows.token_bytes

    def boundary(self, data: Buffer) -> Tensor:
        """The numbers that a boundary tensor's wire bytes spell, (R, T, D) fp32; Malformed."""
        return self._boundary.decode(data, self.shape)

    def sent(self, tensor_RTD: Tensor) -> Sent:
        """An activation, or its gradient, as it travels."""
        data, name = self._boundary.encode(tensor_RTD), self._boundary.dtype_name
        return Sent(data, tensor_digest(name, self.shape, data), name, self.shape)

    # ----------------------------------------------------------------------------------- chunks

    def parts(self, stage: Stage) -> tuple[Slice, ...]:
        """The mean gradient of a stage, cut in the job's chunks, as they travel."""
        pieces = stage.gradient_parts(self.batch.chunks)
        return tuple(slice_of(piece, self.gradient_codec) for piece in pieces)

    def gradient(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> dict[str, Tensor]:
        """The gradient of each parameter, from the wire bytes of all parts in order.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan.
            WrongBytes: a part is longer or shorter than `norms_squared` says, where it does.
        """
        vectors = [vector_of(part, self.gradient_codec) for part in parts]
        if norms_squared and list(norms_squared) != list(map(norm_squared, vectors)):
            raise WrongBytes("a part of a gradient is not as long as was said")
        flat = torch.cat(vectors)
        shapes = self.parameter_shapes
        sizes = [math.prod(shape) for shape in shapes.values()]
        if sum(sizes) != len(flat):
            raise Malformed(f"a gradient of {len(flat)} elements, wanted {sum(sizes)}")
        pieces = flat.split(sizes)
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }


def millionths(loss: Tensor) -> int:
    """A loss in 1e-6 nats; raises NotFinite."""
    value = float(loss)
    if not math.isfinite(value):
        raise NotFinite("a loss is not finite")
    return round(value * LOSS_SCALE)


def corpus_rows(spec: JobSpec, blobs: BlobSource) -> UnitRows:
    """The rows of a job's corpus; fetches its manifest.

    Raises:
        NotFound, ServiceUnreachable, WrongBytes: the manifest.
    """
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    manifest = decode_manifest(CheckedBlobs(blobs).fetch(spec.data.manifest))
    return UnitRows(manifest, config.data, config.model.sequence_length, blobs)
