"""How a job of local steps computes: its numeric recipe, with torch.

Invariant: a function of the signed spec and of sealed state alone, so that whoever replays a claim
from the same weights and rows repeats its numbers; work and replays both go through here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, Refused, WrongBytes
from contracts.terms.ids import ChunkIndex, Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import NUMBERS_OF_STEP, JobSpec, LocalSpec
from contracts.terms.work import Output, WorkClaim
from training.averaging.forms import Forms
from training.averaging.norms import norm_squared
from training.averaging.slices import slice_digest
from training.config import train_config, whole_model
from training.memory import num_parameters
from training.models.parameters import Shape, parameter_shapes
from training.stages.exact import Moments, to_wire
from training.stages.sealed_state import EXP_AVG, EXP_AVG_SQ, MOMENTUM, PREVIOUS
from training.stages.stage import Stage, rows_tensor
from training.stages.torch_free import chunk_bounds
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.inner import Replica
from training.strategies.local.rules import GROUP
from training.strategies.local.trace import TracedStep
from training.strategies.state_files import load_weights


@dataclass(frozen=True)
class Base:
    """What the replicas of a round go on from."""

    weights: dict[str, Tensor]
    moments: Moments | None  # with `moments: mean`
    previous: Tensor | None  # with `overlap`: the weights before the newest update, fp32 (P,)


class LocalRecipe:
    """Of one job."""

    def __init__(self, spec: JobSpec) -> None:
        """Of this job; raises Refused: a spec that does not fit itself."""
        if spec.batch.local is None:
            raise Refused("a job without local steps")
        self.local: LocalSpec = spec.batch.local
        self.config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        self.slice, self.batch = whole_model(self.config.model), spec.batch
        self._is_checked = spec.rules.audit is not None
        self.codec, self.forms = LocalCodec(spec.rules.gradient_codec), Forms(spec)
        self.buckets = tuple(number for _, number in spec.chunking.of_stage(GROUP))

    @property
    def parameter_shapes(self) -> dict[str, Shape]:
        """Of all parameters by name, in the order of the flat vectors."""
        return parameter_shapes(self.config.model, self.slice)

    @cached_property
    def num_parameters(self) -> int:
        """P, the elements of a flat vector."""
        return num_parameters(self.config.model, self.slice)

    @cached_property
    def bounds(self) -> Sequence[tuple[int, int]]:
        """Where each bucket begins and ends in what a replica exchanges (`Replica.difference`)."""
        size, vectors = self.num_parameters, range(self.batch.num_vectors)
        own = chunk_bounds(size, self.batch.chunks)
        return [(k * size + start, k * size + end) for k in vectors for start, end in own]

    def build(
        self, weights: dict[str, Tensor], device: str, *, frozen: Mapping[str, Tensor]
    ) -> Stage:
        """A replica's working state at these weights, with inner moments."""
        model, optimizer = self.config.model, self.config.optimizer
        return Stage(model, self.slice, optimizer, device=device, weights=weights, frozen=frozen)

    def replica(self, stage: Stage) -> Replica:
        """What takes the inner steps of a round on a stage.

        In a checked job it computes on one thread of a CPU. With another number some kernels round
        otherwise, `silu` where a thread's part ends within a vector, products whose widths are no
        whole vectors, and a hundred steps later an honest claim is a mismatch.
        """
        if self._is_checked and stage.device.type == "cpu":
            torch.set_num_threads(1)
        return Replica(stage, rewarm_steps=self.local.rewarm_steps)

    def load_base(self, file: Path, base: Digest) -> "Base":
        """What replicas go on from, of a sealed state; raises as `load_weights`."""
        shapes, local = self.parameter_shapes, self.local
        beside: tuple[str, ...] = ()
        if local.moments == "mean":
            beside = (MOMENTUM, EXP_AVG, EXP_AVG_SQ)
        elif local.overlap:
            beside = (MOMENTUM, PREVIOUS)
        found = load_weights(file, shapes, base, beside=beside)

        def vector(prefix: str) -> Tensor | None:
            if prefix not in beside:
                return None
            return torch.cat([found[prefix + name].flatten() for name in shapes])

        exp_avg, exp_avg_sq = vector(EXP_AVG), vector(EXP_AVG_SQ)
        moments = None
        if exp_avg is not None and exp_avg_sq is not None:
            moments = Moments(exp_avg, exp_avg_sq)
        return Base({name: found[name] for name in shapes}, moments, vector(PREVIOUS))

    # ------------------------------------------------------------------------------------- items

    def steps(self, rows: bytes) -> tuple[Tensor, ...]:
        """The rows of each inner step of an item, (R, T + 1) int64; raises Malformed."""
        return tuple(torch.split(self._rows(rows, self.batch.rows_per_unit), self._at_once))

    def rows_at_once(self, rows: bytes) -> Tensor:
        """The rows of one forward pass, (R, T + 1) int64; raises Malformed."""
        return self._rows(rows, self._at_once)

    @property
    def _at_once(self) -> int:
        return self.batch.rows_at_once

    def _rows(self, rows: bytes, num_rows: int) -> Tensor:
        size = self.forms.token_bytes(rows, num_rows)
        return rows_tensor([rows], token_bytes=size).view(num_rows, -1)

    def steps_before(self, item: ItemNumber) -> int:
        """Inner steps that the schedule counts before a claim whose lowest item is this one.

        As many as a peer does in the rounds that all items below it fill: so the schedule is over
        when the data is, whoever was away.
        """
        rounds = item // self.batch.units_per_step
        return rounds * self.local.segments * self.local.inner_steps

    @staticmethod
    def step_seed(weights: Digest, item: ItemNumber, step: int) -> bytes:
        """Of the projections of one inner step of an item, computed from weights with this root."""
        return digest("local step", encode([weights, item, step]))

    # ---------------------------------------------------------------------------------- exchange

    def shards(
        self, difference: Tensor, base: Digest, first: ItemNumber
    ) -> Iterator[tuple[Output, bytes]]:
        """A difference bucket by bucket, as it travels.

        Args:
            difference: Of a replica.
            base: Root of the sealed state that it starts from.
            first: The lowest item of the claim: no two claims of a round have the same.

        Raises:
            NotFinite: inf or nan.
        """
        for number, (start, end) in zip(self.buckets, self.bounds, strict=True):
            seed = self._shard_seed(base, first, number)
            data = self._codec_of(number).shard(difference[start:end], seed)
            sent = self.read_shard(data, number)
            yield self.output(number, data, sent), data

    def difference(self, shards: Sequence[bytes]) -> list[Tensor]:
        """What the shards of a claim spell, bucket by bucket, fp32.

        Raises:
            Malformed: not all buckets, or of another length. NotFinite: inf or nan.
        """
        if len(shards) != len(self.bounds):
            raise Malformed(f"{len(shards)} shards, wanted {len(self.bounds)}")
        return [*map(self.read_shard, shards, self.buckets)]

    def read_shard(self, data: Buffer, number: ChunkIndex) -> Tensor:
        """What a shard of a bucket spells, fp32; raises as `difference`."""
        start, end = self.bounds[number]
        return self._codec_of(number).read_shard(data, end - start)

    def _codec_of(self, number: ChunkIndex) -> LocalCodec:
        """Of shards: moments travel as their means do, as in few bits small roots are zero."""
        codec = self.codec
        return LocalCodec(codec.mean_name) if self.batch.vector_of(number) else codec

    def nearest(self, difference: Tensor, claim: WorkClaim, shards: Sequence[bytes]) -> Tensor:
        """Of all differences that the claim's shards may stand for the one next to this.

        Raises:
            Malformed: not all buckets, or of another length. NotFinite: inf or nan.
            WrongBytes: a shard is longer or shorter than the claim says.
        """
        sent, first = self.difference(shards), claim.items[0][0]
        norms = [norm_squared(to_wire(each)) for each in sent]
        if norms != [each.norm_squared for each in claim.outputs]:
            raise WrongBytes("a shard of a difference is not as long as was said")
        own = difference.split([len(each) for each in sent])
        seeds = (self._shard_seed(claim.base, first, number) for number in self.buckets)
        codecs = map(self._codec_of, self.buckets)
        each = zip(codecs, own, shards, seeds, strict=True)
        return torch.cat([codec.nearest(*others) for codec, *others in each])

    @staticmethod
    def _shard_seed(base: Digest, first: ItemNumber, number: ChunkIndex) -> bytes:
        return digest("local shard", encode([base, first, number]))

    def output(self, number: ChunkIndex, data: bytes, sent: Tensor) -> Output:
        """What a claim says of a shard or a bucket: `data`, which spell `sent`."""
        name = slice_digest(data, self.codec.name)
        return Output(bucket=number, digest=name, norm_squared=norm_squared(to_wire(sent)))


# ------------------------------------------------------------------------------------------ leaves


def leaf_numbers(steps: Sequence[TracedStep]) -> tuple[int, ...]:
    """The numbers of an item's leaf: mean loss, then loss, norm and projections of each step."""
    loss = sum(step.loss for step in steps) // len(steps)
    return (loss, *(n for step in steps for n in (step.loss, step.norm, *step.projections)))


def traced_steps(numbers: Sequence[int]) -> tuple[TracedStep, ...]:
    """The steps that the numbers of a leaf tell of; raises Malformed."""
    told = numbers[1:]
    if not numbers or len(told) % NUMBERS_OF_STEP:
        raise Malformed("the numbers of a leaf of local steps: a loss, then ten a step")
    starts = range(0, len(told), NUMBERS_OF_STEP)
    return tuple(
        TracedStep(told[at], told[at + 1], tuple(told[at + 2 : at + NUMBERS_OF_STEP]))
        for at in starts
    )
