"""How a job's bytes become what a stage computes with, and back: its numeric recipe, with torch.

Invariant: a function of the signed spec and of the bytes alone, so that whoever repeats an item
from the bytes repeats the numbers; passes and replays all go through here. A boundary tensor has
one form in a job, (rows, tokens, width) under its codec: whatever else comes is Malformed.

A sender goes on with its true activations, a receiver with what the codec left of them: the
gradient passes the codec as if it were not there (straight-through).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from contracts.terms.errors import Malformed, Refused, WrongBytes
from contracts.terms.ids import ChunkIndex, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.targets import TargetCounts, item_weights
from contracts.terms.work import LeafNames, Output, leaf_names
from training.averaging.forms import Forms
from training.averaging.norms import norm_squared
from training.averaging.slices import Slice
from training.averaging.sums import slice_of, vector_of
from training.compression.codecs import codec as codec_named
from training.config import slices_of, train_config
from training.data.manifest import TARGET_MARK
from training.models.parameters import Shape, parameter_shapes
from training.stages.stage import Stage, UnitInputs, rows_tensor


class Recipe:
    """Of one stage of one job."""

    def __init__(
        self, spec: JobSpec, stage: StageIndex, targets: TargetCounts | None = None
    ) -> None:
        """Of this stage; `targets` are those that the spec names.

        Raises:
            Refused: no such stage, or a spec that does not fit itself.
            Conflict: other targets than it names.
        """
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        pieces = slices_of(config.model, spec.batch.layer_ends)
        if stage >= len(pieces):
            raise Refused(f"the job has {len(pieces)} stages, there is no stage {stage}")
        self.config, self.stage, self.slice = config, stage, pieces[stage]
        self.batch, self.gradient_codec = spec.batch, spec.rules.mean_codec
        self.buckets = tuple(number for _, number in spec.chunking.of_stage(stage))
        self._boundary = codec_named(spec.rules.boundary_codec)
        self.forms, self._weights = Forms(spec), item_weights(spec, targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a boundary tensor: rows, tokens, width."""
        model = self.config.model
        return (self.batch.rows_per_unit, model.sequence_length, model.width)

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Of the stage's parameters by name, in the order of its flat vectors."""
        return parameter_shapes(self.config.model, self.slice)

    def names(self, item: ItemNumber) -> LeafNames:
        """What the leaf of an item calls its tensors."""
        return leaf_names(self.stage, self.batch.stages, item)

    def build(
        self,
        weights: dict[str, Tensor],
        device: str,
        *,
        frozen: Mapping[str, Tensor],
        trains: bool = True,
    ) -> Stage:
        """A stage at these weights."""
        config = self.config
        return Stage(
            config.model,
            self.slice,
            config.optimizer,
            device=device,
            weights=weights,
            frozen=frozen,
            trains=trains,
        )

    # ------------------------------------------------------------------------------------ items

    def inputs(
        self, rows: bytes | None, x: bytes | None, item: ItemNumber | None = None
    ) -> UnitInputs:
        """What the stage computes an item from.

        Args:
            rows: Bytes of its rows, in the first and the last stage.
            x: A boundary tensor with its form, in every stage but the first.
            item: Which it is; None: rows to validate on, which weigh nothing.

        Raises:
            Malformed: either is of another form, or has not the targets that the job counts.
            NotFinite: x holds inf or nan.
        """
        x_RTD = None if x is None else self.boundary(x)
        rows_RT = None if rows is None else self._tokens(rows)
        if self._weights.targets is None:
            return UnitInputs(rows_RT, x_RTD)
        weight = None if item is None else self._weights.of_item(item)
        if rows_RT is None:
            return UnitInputs(None, x_RTD, weight=weight)
        targets_RT = (rows_RT >= TARGET_MARK)[:, 1:]
        if weight not in (None, int(targets_RT.sum())):
            raise Malformed(f"the rows of item {item} have not the {weight} targets that count")
        return UnitInputs(rows_RT % TARGET_MARK, x_RTD, targets_RT, weight)

    def _tokens(self, rows: bytes) -> Tensor:
        num_rows, size = self.batch.rows_per_unit, self.forms.token_bytes(rows)
        return rows_tensor([rows], token_bytes=size).view(num_rows, -1)

    def boundary(self, formed: bytes) -> Tensor:
        """The numbers that a boundary tensor spells, (R, T, D) fp32.

        Raises:
            Malformed: it is of another form. NotFinite: inf or nan.
        """
        form, num_bytes = self.forms.boundary_form, self.forms.boundary_bytes
        if len(formed) != num_bytes or not formed.startswith(form):
            raise Malformed("a boundary tensor is not of the form that the job says")
        return self._boundary.decode(memoryview(formed)[len(form) :], self.shape)

    def sent(self, tensor_RTD: Tensor) -> bytes:
        """An activation, or its gradient, as it travels, with its form; raises NotFinite."""
        return self.forms.boundary_form + self._boundary.encode(tensor_RTD)

    # ---------------------------------------------------------------------------------- gradient

    def shards(self, stage: Stage) -> Iterable[tuple[Output, bytes]]:
        """The mean gradient of a stage, bucket by bucket, as it travels; raises NotFinite."""
        buckets = stage.mean_buckets(self.batch.chunks)
        for number, bucket in zip(self.buckets, buckets, strict=True):
            made = slice_of(bucket, self.gradient_codec)
            yield output_of(number, made), made.data

    def gradient(self, shards: Sequence[bytes], norms_squared: Sequence[int]) -> dict[str, Tensor]:
        """The gradient of each parameter, from the wire bytes of all shards in order.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan.
            WrongBytes: a shard is longer or shorter than `norms_squared` says.
        """
        vectors = [vector_of(shard, self.gradient_codec) for shard in shards]
        if list(norms_squared) != [norm_squared(each, self.gradient_codec) for each in shards]:
            raise WrongBytes("a shard of a gradient is not as long as was said")
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


def output_of(number: ChunkIndex, made: Slice) -> Output:
    """What a claim says of a shard or a bucket."""
    return Output(bucket=number, digest=made.digest, norm_squared=made.norm_squared)
