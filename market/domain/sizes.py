"""How large is a job: what it costs at a price, how it could be cut, and do its tensors fit? Pure.

Cost is the model FLOPs of all units, times the price, rounded down. Invariant: whoever is paid what
at prices up to `price`, all pay together is at most `job_cost`, because a sum of floors never
exceeds the floor of the sum.

A job with another number of stages trains the same model in the same steps: its FLOPs and its cost
are the same, its largest stage needs more or less memory, and it wants more or fewer owners.

A job that is admitted can deliver its model: weights of each stage fit an index of parts, and all
of them the disk of the store; a chunk of a gradient and a boundary tensor fit one call; of a
checked job what shows a wrong peer-step fits one bundle.

Units: base units, model FLOPs (of a cut: of one unit), bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.errors import Refused
from contracts.terms.ids import MAX_STAGES
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.parts import MAX_WHOLE_BYTES
from training.compression.formats import FORMATS, exchanged_bytes, part_bytes
from training.config import ModelConfig, StageSlice, shares_embedding, slices_of, train_config
from training.disk import base_bytes
from training.flops import item_flops
from training.memory import FP32, HEAD_BYTES, num_parameters, peer_memory
from training.planner import plan_layers
from training.strategies.limits import footprint_of
from verification.auditing.bundle import MAX_BUNDLE_BYTES

# -------------------------------------------------------------------------------------------- cost


def step_flops(spec: JobSpec) -> Flops:
    """FLOPs of one step through all stages."""
    return Flops(spec.batch.units_per_step * sum(spec.item_flops))


def job_flops(spec: JobSpec) -> Flops:
    """FLOPs of the whole job."""
    return Flops(spec.batch.steps * step_flops(spec))


def job_cost(spec: JobSpec, price: PricePerPflop) -> BaseUnits:
    """What the whole job costs at `price`."""
    return pay_for(job_flops(spec), price)


def affordable_price(spec: JobSpec, budget: int) -> int:
    """The highest ceiling that `budget` covers for the whole job; 0 when none does."""
    return ((budget + 1) * FLOPS_PER_PFLOP - 1) // job_flops(spec)


def affordable_steps(spec: JobSpec, budget: int) -> int:
    """How many steps `budget` covers at the spec's ceiling."""
    return ((budget + 1) * FLOPS_PER_PFLOP - 1) // (step_flops(spec) * spec.price_ceiling)


def stage_seconds(spec: JobSpec, stage_speeds: Sequence[int]) -> tuple[int, ...]:
    """Seconds of computing of each stage, rounded up.

    Args:
        spec: The job.
        stage_speeds: FLOP/s of all peers of a stage together, stage by stage.
    """
    num_units = spec.batch.steps * spec.batch.units_per_step
    return tuple(
        -(-num_units * flops // max(1, speed))
        for flops, speed in zip(spec.item_flops, stage_speeds, strict=True)
    )


# -------------------------------------------------------------------------------------------- cuts

FARTHEST_STAGES = 4
"""Numbers of stages that are tried: so many fewer and more than the job has."""
FARTHEST_PEERS = 64


@dataclass(frozen=True)
class Cut:
    """Stages, peers of each, and what they ask for."""

    stages: int
    peers_per_stage: int
    memory_bytes: int  # of a peer of the largest stage
    dearest_unit: Flops  # of one unit through the stage that has most work

    @property
    def slots(self) -> int:
        """Owners that it wants."""
        return self.stages * self.peers_per_stage


@dataclass(frozen=True)
class Terms:
    """What a job asks for, as it is or with a relaxation in it."""

    price_ceiling: PricePerPflop
    min_stake: BaseUnits
    deadline: UnixSeconds
    start: UnixMillis  # when it is matched
    cut: Cut


def cut_of(spec: JobSpec) -> Cut:
    """The cut that the poster has signed."""
    batch = spec.batch
    return Cut(batch.stages, batch.peers_per_stage, spec.memory_bytes, max(spec.item_flops))


def other_cuts(spec: JobSpec) -> tuple[Cut, ...]:
    """Other cuts of the same work: fewer or more stages, fewer peers in each, or both.

    Whole replicas can only be fewer.
    """
    signed = cut_of(spec)
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    most = min(config.num_layers, MAX_STAGES, signed.stages + FARTHEST_STAGES)
    near = range(max(1, signed.stages - FARTHEST_STAGES), most + 1)
    near = range(0) if spec.batch.trains_replicas else near
    rows, audits = spec.batch.rows_per_unit, spec.rules.audit is not None
    planned = [_planned(config, each, rows, audits) for each in near if each != signed.stages]
    sizes = [(signed.stages, signed.memory_bytes, signed.dearest_unit), *planned]
    peers = range(max(1, signed.peers_per_stage - FARTHEST_PEERS), signed.peers_per_stage + 1)
    cuts = [Cut(stages, each, memory, work) for stages, memory, work in sizes for each in peers]
    return tuple(cut for cut in cuts if cut != signed)


@lru_cache(maxsize=1024)
def _planned(
    config: ModelConfig, stages: int, rows_per_unit: int, audits: bool
) -> tuple[int, int, Flops]:
    """Stages, memory of the largest and work of the busiest."""
    slices = slices_of(config, plan_layers(config, stages, rows_per_unit))
    memory = [peer_memory(config, each, rows_per_unit, audits=audits) for each in slices]
    work = [item_flops(config, each, rows_per_unit) for each in slices]
    return stages, max(memory), max(work)


# ------------------------------------------------------------------- tensors, weights and evidence


class Size(NamedTuple):
    """Something that travels, what bounds it, and what makes it smaller."""

    what: str
    num_bytes: int
    most: int
    remedy: str


def parameters_of(spec: JobSpec) -> int:
    """Trainable elements of a job's model, in all of its stages together.

    Raises:
        Refused: as `train_config`.
    """
    return sum(_parameters_by_stage(spec))


def _parameters_by_stage(spec: JobSpec) -> tuple[int, ...]:
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    slices = slices_of(config, spec.batch.layer_ends)
    return tuple(num_parameters(config, each) for each in slices)


def item_tokens(spec: JobSpec) -> int:
    """Tokens of text in one item."""
    return spec.batch.rows_per_unit * spec.model.sequence_length


def exchanged(spec: JobSpec, peers: Sequence[int]) -> int:
    """Bytes that the busiest peer sends to average an update, by the number of peers by stage."""
    codecs = spec.rules.part_codecs
    return max(
        exchanged_bytes(codecs, size, num_peers, spec.batch.num_vectors)
        for size, num_peers in zip(_parameters_by_stage(spec), peers, strict=True)
    )


def check_sizes(spec: JobSpec, config: ModelConfig, free_bytes: int | None) -> None:
    """Refuse a job of which something is larger than what carries or keeps it.

    Args:
        spec: The job.
        config: Its model.
        free_bytes: Of the disk of the blob store; None: not known.

    Raises:
        Refused: with the bound; data: `bytes`, `would_fit`.
    """
    for size in _sizes(spec, config, free_bytes):
        if size.num_bytes > size.most:
            raise Refused(
                f"{size.what} has {size.num_bytes} bytes, at most {size.most} fit: {size.remedy}",
                bytes=str(size.num_bytes),
                would_fit=str(size.most),
            )


def _sizes(spec: JobSpec, config: ModelConfig, free_bytes: int | None) -> Iterator[Size]:
    slices = slices_of(config, spec.batch.layer_ends)
    weights = [HEAD_BYTES + FP32 * num_parameters(config, each) for each in slices]
    for number, stage in enumerate(slices):
        what = f"stage {number}"
        remedy = "train a smaller model, or cut it into more stages"
        yield Size(f"the model of {what}", weights[number], MAX_WHOLE_BYTES, remedy)
        chunk = _chunk_bytes(spec, config, stage)
        yield Size(f"a chunk of the gradient of {what}", chunk, MAX_CHUNK_BYTES, "have more chunks")
        if spec.rules.audit is not None:
            evidence = base_bytes(spec, config, stage) + _shown_bytes(spec, config, stage)
            remedy = f"use {footprint_of(spec.batch).remedy}, or fewer rows in a unit"
            yield Size(f"evidence against {what}", evidence, MAX_BUNDLE_BYTES, remedy)
    if len(slices) > 1:
        boundary = _boundary_bytes(spec, config)
        yield Size("a unit between two stages", boundary, MAX_CHUNK_BYTES, "lower rows_per_unit")
    if free_bytes is not None:
        remedy = "the market's disk is too full for it, ask its operator or train a smaller one"
        times = 1 + spec.batch.num_publications
        what = "the trained model" if times == 1 else f"the trained model, published {times} times,"
        yield Size(what, times * sum(weights), free_bytes, remedy)


def _chunk_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """The largest chunk that a member of `stage` gives parts to, in the job's codec."""
    own, shared = num_parameters(config, stage), 0
    if shares_embedding(config, stage):
        shared = config.vocab_size * config.width
    largest = -(-max(own - shared, shared) // spec.batch.chunks)
    return _part_bytes(spec, largest)


def _part_bytes(spec: JobSpec, num_elements: int) -> int:
    """Of the longer of shard and bucket."""
    return max(part_bytes(each, num_elements) for each in spec.rules.part_codecs)


def _boundary_bytes(spec: JobSpec, config: ModelConfig) -> int:
    elements = spec.batch.rows_per_unit * config.sequence_length * config.width
    return FORMATS[spec.rules.boundary_codec].num_bytes(elements)


def _shown_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """What a bundle has beside the weights: a gradient, and x and dy of an equal part of units."""
    gradient = spec.batch.num_vectors * _part_bytes(spec, num_parameters(config, stage))
    boundaries = (not stage.has_embedding) + (not stage.has_head)
    units = -(-spec.batch.units_per_step // spec.batch.peers_per_stage)
    return gradient + units * boundaries * _boundary_bytes(spec, config)
