"""How much memory did a stage take at its fullest? `python -m tests.numerics.peak_memory`.

For each shape a fork of its own runs the numbers of one step as a peer does: forward passes until
all graphs that may wait are there, backward passes, the gradient bucket by bucket as bytes, means,
the update, the checkpoint; once more with an audit that begins meanwhile.
It prints, a line of JSON each, the greatest resident size since torch
was loaded (Linux, /proc), and what `memory.py` says.
"""

import gc
import json
import os
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import torch

from contracts.terms.items import ItemNumber
from tests.numerics.loop import saved
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.config import ModelConfig, OptimizerConfig, StageSlice, slices_of
from training.memory import MAX_GRAPHS, peer_memory
from training.stages.stage import Stage, UnitInputs

ROWS = 4
BUCKETS = 4
WIDE = ModelConfig(
    vocab_size=2048, width=384, num_layers=6, num_heads=6, num_kv_heads=2, ffn_width=1024,
    sequence_length=128,
)  # fmt: skip
SHORT = ModelConfig(
    vocab_size=2048, width=384, num_layers=4, num_heads=6, num_kv_heads=6, ffn_width=1536,
    sequence_length=8,
)  # fmt: skip
SHAPES: dict[str, tuple[ModelConfig, tuple[int, ...], int]] = {
    "whole": (WIDE, (6,), 0),
    "middle": (WIDE, (2, 4, 6), 1),
    "last": (WIDE, (2, 4, 6), 2),
    "many parameters, few tokens": (SHORT, (4,), 0),
}
OPTIMIZER = OptimizerConfig(learning_rate=0.001, total_steps=2)


def resident(field: str) -> int:
    """Bytes that /proc/self/status says: `VmRSS` now, `VmHWM` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")


def one_step(model: ModelConfig, part: StageSlice, folder: Path, *, audits: bool) -> None:
    """All that a peer holds at once, in the order of a step."""
    stage = Stage(model, part, OPTIMIZER)
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


def one_replay(
    model: ModelConfig, part: StageSlice, weights: Mapping[str, torch.Tensor]
) -> tuple[object, ...]:
    """All that an audit holds at its end, when what was sent is here too."""
    loaded = {name: tensor.clone() for name, tensor in weights.items()}
    stage = Stage(model, part, OPTIMIZER, weights=loaded, trains=False)
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


def measure(shape: str, *, audits: bool) -> None:
    """Run one shape."""
    model, ends, number = SHAPES[shape]
    part = slices_of(model, ends)[number]
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the greatest size so far
    with tempfile.TemporaryDirectory() as folder:
        one_step(model, part, Path(folder), audits=audits)
    taken, planned = resident("VmHWM") - before, peer_memory(model, part, ROWS, audits=audits)
    print(json.dumps([named(shape, audits=audits), taken, planned]), flush=True)


def named(shape: str, *, audits: bool) -> str:
    """What a line is called."""
    return f"{shape}, with an audit" if audits else shape


def main() -> None:
    """Run all shapes, each in a fork that has torch and nothing else."""
    torch.set_num_threads(1)
    for shape, audits in product(SHAPES, (False, True)):
        if (child := os.fork()) == 0:
            measure(shape, audits=audits)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{shape}: status {status}")


if __name__ == "__main__":
    main()
