"""Where a decoder is cut into stages: the least work for the busiest stage, within a memory. Pure.

A job is as fast as its slowest stage, so the plan minimises the largest `item_flops` of a stage.
Layers are alike: a stage's flops and bytes are each a constant (its ends: the embedding looks up,
the head multiplies) plus a constant for every layer. Then dealing the layers one by one, each to
the stage that has the fewest flops with it among those whose memory still holds it, is optimal:
it is resource allocation with convex separable cost, which greedy steps solve exactly (Federgruen
and Groenevelt 1986). `tests/property/test_planner.py` compares it with all cuts there are.
"""

from itertools import accumulate

from contracts.terms.errors import Refused
from contracts.terms.ids import MAX_STAGES
from contracts.terms.messages import JobSpec
from training.config import ModelConfig, StageSlice, slices_of
from training.flops import item_flops
from training.memory import EVERY_STEP, Footprint, peer_memory
from training.strategies.limits import footprint_of


def plan_layers(
    config: ModelConfig,
    num_stages: int,
    rows_at_once: int,
    *,
    memory_bytes: int | None = None,
    audits: bool = False,
    footprint: Footprint = EVERY_STEP,
) -> tuple[int, ...]:
    """`layer_ends` of a cut into `num_stages` stages; ties go to the earlier stage.

    Args:
        config: The whole model.
        num_stages: At least one layer goes into each.
        rows_at_once: Of one forward pass.
        memory_bytes: What a peer has, None for any.
        audits: Whether a peer also replays the work of others.
        footprint: Of the job's strategy.

    Raises:
        Refused: more stages than layers, or a stage that no cut makes fit into the memory.
    """
    if not 1 <= num_stages <= min(config.num_layers, MAX_STAGES):
        raise Refused(f"{config.num_layers} layers cannot be cut into {num_stages} stages")
    ends = [(stage == 0, stage == num_stages - 1) for stage in range(num_stages)]
    layers = [1] * num_stages

    def flops_with(stage: int, num_layers: int) -> int:
        return item_flops(config, StageSlice(0, num_layers, *ends[stage]), rows_at_once)

    def fits(stage: int, num_layers: int) -> bool:
        part = StageSlice(0, num_layers, *ends[stage])
        need = peer_memory(config, part, rows_at_once, audits=audits, footprint=footprint)
        return memory_bytes is None or need <= memory_bytes

    too_large = Refused(
        f"no cut of {config.num_layers} layers into {num_stages} stages fits into {memory_bytes} "
        f"bytes a peer with units of {rows_at_once} rows: use {footprint.remedy}, smaller units or "
        "peers with more memory",
        stages=num_stages,
        memory_bytes=memory_bytes,
    )
    open_stages = [stage for stage in range(num_stages) if fits(stage, 1)]
    if len(open_stages) < num_stages:
        raise too_large
    for _ in range(config.num_layers - num_stages):
        open_stages = [stage for stage in open_stages if fits(stage, layers[stage] + 1)]
        if not open_stages:
            raise too_large
        best = min(open_stages, key=lambda stage: flops_with(stage, layers[stage] + 1))
        layers[best] += 1
    return tuple(accumulate(layers))


def stage_memories(spec: JobSpec, config: ModelConfig) -> tuple[int, ...]:
    """What `peer_memory` is in each stage of a job; raises Refused: no cut of this model."""
    batch, audits = spec.batch, spec.rules.audit is not None
    footprint = footprint_of(batch)
    return tuple(
        peer_memory(config, each, batch.rows_at_once, audits=audits, footprint=footprint)
        for each in slices_of(config, batch.layer_ends)
    )
