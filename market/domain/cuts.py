"""How else could a job be cut into stages and peers, and what would each cut ask of offers? Pure.

A job with another number of stages trains the same model in the same steps: its FLOPs and its cost
are the same, its largest stage needs more or less memory, and it wants more or fewer owners.
Units: bytes, model FLOPs of one unit.
"""

from dataclasses import dataclass
from functools import lru_cache

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import MAX_STAGES
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from training.config import ModelConfig, slices_of, train_config
from training.flops import unit_flops
from training.memory import peer_memory
from training.planner import plan_layers

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
    return Cut(batch.stages, batch.peers_per_stage, spec.memory_bytes, max(spec.unit_flops))


def other_cuts(spec: JobSpec) -> tuple[Cut, ...]:
    """Other cuts of the same work: fewer or more stages, fewer peers in each, or both."""
    signed = cut_of(spec)
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    most = min(config.num_layers, MAX_STAGES, signed.stages + FARTHEST_STAGES)
    near = range(max(1, signed.stages - FARTHEST_STAGES), most + 1)
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
    work = [unit_flops(config, each, rows_per_unit) for each in slices]
    return stages, max(memory), max(work)
