"""How much memory did a stage take at its fullest? `python -m tests.numerics.peak_memory`.

For each shape a fork of its own runs the numbers of one step as a peer does: forward passes until
all graphs that may wait are there, backward passes, the gradient bucket by bucket as bytes, means,
the update, the checkpoint; once more with an audit that begins meanwhile. Whole models also take a
round of local steps, alone and beside a replay of one.
It prints, a line of JSON each, the greatest resident size since torch
was loaded (Linux, /proc), and what `memory.py` says.
"""

import gc
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import torch

from contracts.terms.items import ItemNumber
from contracts.terms.messages import AdapterSpec, LocalSpec, ShardCodecName
from tests.numerics.loop import saved
from tests.support.local_jobs import of_local_steps
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.config import ModelConfig, OptimizerConfig, StageSlice, slices_of
from training.memory import EVERY_STEP, MAX_GRAPHS, peer_memory
from training.models.parameters import model_shapes
from training.stages.exact import Moments, weighted_mean
from training.stages.stage import Stage, UnitInputs
from training.stages.torch_free import chunk_bounds
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.footprint import footprint
from training.strategies.local.inner import Replica
from training.strategies.local.outer import apply_outer, apply_root

ROWS = 4
BUCKETS = 4
SHARDS: ShardCodecName = "seeded4"
WIDE = ModelConfig(
    vocab_size=2048, width=384, num_layers=6, num_heads=6, num_kv_heads=2, ffn_width=1024,
    sequence_length=128,
)  # fmt: skip
SHORT = ModelConfig(
    vocab_size=2048, width=384, num_layers=4, num_heads=6, num_kv_heads=6, ffn_width=1536,
    sequence_length=8,
)  # fmt: skip
ADAPTER = AdapterSpec(
    rank=8,
    alpha=16,
    targets=("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
)
WINDOWED = ModelConfig(
    vocab_size=256, width=384, num_layers=2, num_heads=6, num_kv_heads=2, ffn_width=1024,
    sequence_length=1536, head_dim=64, qk_norm=True, window=600,
)  # fmt: skip
SHAPES: dict[str, tuple[ModelConfig, tuple[int, ...], int]] = {
    "whole": (WIDE, (6,), 0),
    "middle": (WIDE, (2, 4, 6), 1),
    "last": (WIDE, (2, 4, 6), 2),
    "many parameters, few tokens": (SHORT, (4,), 0),
    "adapter, whole": (replace(WIDE, adapter=ADAPTER), (6,), 0),
    "adapter, middle": (replace(WIDE, adapter=ADAPTER), (2, 4, 6), 1),
    "norms of heads and a window": (WINDOWED, (2,), 0),
}
WAYS: dict[str, LocalSpec | None] = {
    "": None,
    ", local steps": of_local_steps()["local"],
    ", local steps with moments": of_local_steps(moments="mean")["local"],
    ", local steps with overlap": of_local_steps(overlap=True)["local"],
}
OPTIMIZER = OptimizerConfig(learning_rate=0.001, total_steps=2)


def resident(field: str) -> int:
    """Bytes that /proc/self/status says: `VmRSS` now, `VmHWM` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")


@cache
def frozen(model: ModelConfig, part: StageSlice) -> Mapping[str, torch.Tensor]:
    """What an adapter is trained beside, once in a process."""
    shapes = {} if model.adapter is None else model_shapes(model, part)
    return {name: torch.ones(shape) for name, shape in shapes.items()}


def one_step(model: ModelConfig, part: StageSlice, folder: Path, *, audits: bool) -> None:
    """All that a peer holds at once, in the order of a step."""
    stage = Stage(model, part, OPTIMIZER, frozen=frozen(model, part))
    units = [ItemNumber(unit) for unit in range(1 if part.has_head else MAX_GRAPHS)]
    for unit in units:
        stage.forward(unit, _inputs(model, part))
    compared = one_replay(model, part, stage.weights()) if audits else None
    for unit in units:
        stage.backward(unit, None if part.has_head else _activations(model))
    files = [folder / f"bucket-{number}" for number in range(BUCKETS)]
    for file, bucket in zip(files, stage.mean_buckets(BUCKETS), strict=True):
        file.write_bytes(slice_of(bucket).data)
    for file in files:
        shards = (file.read_bytes() for _ in range(2))
        file.write_bytes(mean_slice(shards, [1, 1]).data)
    stage.apply((vector_of(file.read_bytes()) for file in files), 10**9)
    saved(stage, folder, 1)
    del compared  # an auditor may still be at it when all that is done


def one_local_round(
    model: ModelConfig, part: StageSlice, folder: Path, *, audits: bool, local: LocalSpec
) -> None:
    """All that a peer holds at once in a round of local steps."""
    sealed, momentum, moments, replica = _replica(model, part, local)
    previous = sealed.clone() if local.overlap else None
    replay = _replica(model, part, local) if audits else None
    difference, codec = _stepped(replica, model, part, sealed), LocalCodec(SHARDS)
    vectors = range(0, len(difference), len(sealed))
    bounds = [(k + a, k + b) for k in vectors for a, b in chunk_bounds(len(sealed), BUCKETS)]
    files = [folder / f"bucket-{number}" for number in range(len(bounds))]
    for file, (start, end) in zip(files, bounds, strict=True):
        file.write_bytes(codec.shard(difference[start:end], bytes(32)))
    compared: list[object] = []
    if replay is not None:
        mine = _stepped(replay[-1], model, part, replay[0])
        for file, (start, end) in zip(files, bounds, strict=True):
            own, sent = codec.shard(mine[start:end], bytes(32)), file.read_bytes()
            numbers = [codec.read_shard(data, end - start) for data in (own, sent)]
            compared += [mine, own, sent, *numbers]
    if previous is not None:
        previous.copy_(sealed)
    for file, (start, end) in zip(files, bounds, strict=True):
        shards = (codec.read_shard(file.read_bytes(), end - start) for _ in range(2))
        mean = codec.read_mean(codec.mean(weighted_mean(shards, [1, 1])), end - start)
        vector, first = divmod(start, len(sealed))
        place = slice(first, first + end - start)
        if moments is None or not vector:
            apply_outer(sealed[place], momentum[place], mean, rate=1.0, mu=0.9)
        elif vector == 1:
            moments.exp_avg[place] = mean
        else:
            apply_root(moments.exp_avg[place], moments.exp_avg_sq[place], mean, OPTIMIZER)
    del compared  # an auditor may still be at it when all that is done


def _replica(
    model: ModelConfig, part: StageSlice, local: LocalSpec
) -> tuple[torch.Tensor, torch.Tensor, Moments | None, Replica]:
    """Sealed weights, outer momentum and moments if any, and who begins a round with them."""
    stage = Stage(model, part, OPTIMIZER, frozen=frozen(model, part))
    sealed, replica, moments = stage.flat_weights.clone(), Replica(stage), None
    if local.moments == "mean":
        moments = Moments(torch.zeros_like(sealed), torch.zeros_like(sealed))
    replica.start(0, moments)
    return sealed, torch.zeros_like(sealed), moments, replica


def _stepped(
    replica: Replica, model: ModelConfig, part: StageSlice, sealed: torch.Tensor
) -> torch.Tensor:
    """The difference after two inner steps, as if all were done ahead of the round."""
    for number in range(2):
        replica.step({ItemNumber(number): _inputs(model, part)}, bytes(32))
    replica.rebase(sealed)
    return replica.difference()


def one_replay(
    model: ModelConfig, part: StageSlice, weights: Mapping[str, torch.Tensor]
) -> tuple[object, ...]:
    """All that an audit holds at its end, when what was sent is here too."""
    loaded = {name: tensor.clone() for name, tensor in weights.items()}
    held = frozen(model, part)
    stage = Stage(model, part, OPTIMIZER, weights=loaded, frozen=held, trains=False)
    del loaded
    for unit in (ItemNumber(0), ItemNumber(1)):
        stage.forward(unit, _inputs(model, part))
        stage.backward(unit, None if part.has_head else _activations(model))
    mine, sent = ([own.data for own in _own_parts(stage)] for _ in range(2))
    numbers = [torch.cat([vector_of(part) for part in parts]) for parts in (mine, sent)]
    return stage, mine, sent, numbers


def _own_parts(stage: Stage) -> list[Slice]:
    return [slice_of(bucket) for bucket in stage.mean_buckets(BUCKETS)]


def _inputs(model: ModelConfig, part: StageSlice) -> UnitInputs:
    rows = torch.zeros(ROWS, model.sequence_length + 1, dtype=torch.int64)
    has_rows = part.has_embedding or part.has_head
    return UnitInputs(
        rows if has_rows else None, None if part.has_embedding else _activations(model)
    )


def _activations(model: ModelConfig) -> torch.Tensor:
    return torch.ones(ROWS, model.sequence_length, model.width)


def measure(shape: str, *, audits: bool, how: str) -> None:
    """Run one shape."""
    model, ends, number = SHAPES[shape]
    part, local = slices_of(model, ends)[number], WAYS[how]
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the greatest size so far
    with tempfile.TemporaryDirectory() as folder:
        if local is not None:
            one_local_round(model, part, Path(folder), audits=audits, local=local)
        else:
            one_step(model, part, Path(folder), audits=audits)
    taken = resident("VmHWM") - before
    own = EVERY_STEP if local is None else footprint(local)
    planned = peer_memory(model, part, ROWS, audits=audits, footprint=own)
    named = name_of(shape, audits=audits, how=how)
    print(json.dumps([named, taken, planned]), flush=True)


def cases() -> Iterator[tuple[str, bool, str]]:
    """Shape, with an audit or not, one of `WAYS`: local steps are of whole models."""
    for shape, audits, how in product(SHAPES, (False, True), WAYS):
        if WAYS[how] is None or len(SHAPES[shape][1]) == 1:
            yield shape, audits, how


def name_of(shape: str, *, audits: bool, how: str) -> str:
    """What a line is called."""
    return shape + how + (", with an audit" if audits else "")


def main() -> None:
    """Run all cases, each in a fork that has torch and nothing else."""
    torch.set_num_threads(1)
    for shape, audits, how in cases():
        if (child := os.fork()) == 0:
            measure(shape, audits=audits, how=how)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{shape}: status {status}")


if __name__ == "__main__":
    main()
