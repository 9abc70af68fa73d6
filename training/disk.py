"""How much disk a peer's lease takes, in bytes. Pure; what `Keeping` holds, and agents check for.

A peer's folder holds, of its stage,
- checkpoints, fp32 (`Footprint.checkpoint`): two that are kept, one that is being written, one that
  a newcomer downloads, and one that is published;
- what its strategy keeps of the round in work (`Footprint.round_in_work`);
- the buckets since the older checkpoint that is kept, for a restart and for late members;
- the open step, and in a checked job up to `MOST_STEPS` sealed ones whose draws are open: the
  state before the step that a replay starts from, the shards of our gradient and those that we
  reduce or hold for others, and the boundary tensors of our items; and as much as one more, for
  what we have of others beside it: shards that audits take, or that buckets of several lost members
  make ours;
- the journal and the odds and ends (`SMALL`).
A member may do the work of one that is lost beside its own (`SHARES`). The sealed steps are what
others decide: `training.worker.keeping` lets the oldest go above `kept_disk`. Tests:
`tests/unit/training/test_disk.py`, `tests/unit/training/worker/test_keeping.py`.
"""

from collections.abc import Iterator

from contracts.terms.messages import JobSpec
from training.config import ModelConfig, StageSlice, slices_of, train_config
from training.memory import FP32, HEAD_BYTES, num_parameters
from training.strategies.limits import footprint_of

MOST_STEPS = 16
"""Sealed steps whose work stays at most (docs/protocol.md 7)."""
CHECKPOINTS = 4
BOUNDARIES = 4  # tensors of a unit in a middle stage: x, y, dy, dx
OPEN = 2  # steps beside the sealed ones: the one in work, and others' work that we have for sums
SHARES = 2  # of a step's units and sums: our own, and those of one member that is lost
SMALL = 64 * 2**20


def kept_disk(spec: JobSpec) -> int:
    """Bytes that the open step and the sealed ones that stay may take; 0 without checking.

    At a peer of the largest stage.

    Raises:
        Refused: no model can be made of the spec's numbers.
    """
    kept = _num_kept(spec)
    return (kept + OPEN) * max(each for _, each in _sizes(spec)) if kept else 0


def lease_disk(spec: JobSpec) -> int:
    """Bytes that the folder of a peer of the largest stage takes at most; raises as `kept_disk`."""
    batch, footprint = spec.batch, footprint_of(spec.batch)
    chunks = footprint.exchanged * min(batch.steps, 2 * batch.checkpoint_every + 1)
    return SMALL + max(
        (CHECKPOINTS + (batch.publish_every > 0)) * footprint.checkpoint * weights
        + (chunks + footprint.round_in_work) * weights
        + (_num_kept(spec) + OPEN) * step
        for weights, step in _sizes(spec)
    )


def base_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """Of a file that a replay starts from, at most."""
    each = HEAD_BYTES + FP32 * num_parameters(config, stage)
    return footprint_of(spec.batch).base * each


def _num_kept(spec: JobSpec) -> int:
    return 0 if spec.rules.audit is None else min(MOST_STEPS, spec.batch.steps)


def _sizes(spec: JobSpec) -> Iterator[tuple[int, int]]:
    """Bytes of the weights of each stage, and of one step at one of its peers."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    for stage in slices_of(config, spec.batch.layer_ends):
        weights = FP32 * num_parameters(config, stage)
        shares = SHARES * footprint_of(spec.batch).exchanged * weights
        yield weights, base_bytes(spec, config, stage) + shares + _boundaries(spec, config, stage)


def _boundaries(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """Bytes of the tensors that pass the ends of a stage in a step, for one of its peers."""
    batch = spec.batch
    if stage.has_embedding and stage.has_head:
        return 0
    units = -(-SHARES * batch.units_per_step // batch.peers_per_stage)
    tokens = batch.rows_per_unit * config.sequence_length
    return min(units, batch.units_per_step) * BOUNDARIES * FP32 * tokens * config.width
