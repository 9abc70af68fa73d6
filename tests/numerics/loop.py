"""The single-stage job without a swarm: the shipped `Stage` driven by one loop.

What a worker, a coordinator and a summing peer do to numbers in a step, and nothing else; tests
and benchmarks compare it with `plain.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor

from contracts.terms.ids import Digest, StageIndex
from contracts.terms.items import ItemNumber
from tests.support.corpora import Corpus, cut_corpus
from tests.support.fakes.blobs import MemoryBlobs
from training.averaging.norms import norm_squared
from training.config import TrainConfig, whole_model
from training.data.loading import UnitRows
from training.stages.exact import to_wire, weighted_mean
from training.stages.stage import Stage, UnitInputs, rows_tensor
from training.strategies.port import RoundNumber
from training.strategies.state_files import StageState

TEXT = (
    "the stage holds a unit until its seal names what was done and then it pays for work that "
    "matched while a peer sums chunks of gradient in order with equal bytes for every member"
)


@dataclass
class Run:
    """What a run showed, by step."""

    losses: list[float] = field(default_factory=list)
    roots: list[Digest] = field(default_factory=list)


def synthetic_corpus(num_words: int = 12_000) -> Corpus:
    """Text with some structure, the same on every Python version."""
    state, known, words = 1, TEXT.split(), []
    for _ in range(num_words):
        state = (1103515245 * state + 12345) % 2**31
        words.append(known[(state >> 16) % len(known)])
    return cut_corpus(" ".join(words).encode(), shard_bytes=1024, every=16)


def rows_of(config: TrainConfig, corpus: Corpus) -> UnitRows:
    """The rows of a corpus under a configuration."""
    blobs = MemoryBlobs(corpus.blobs)
    return UnitRows(corpus.manifest, config.data, config.model.sequence_length, blobs)


def items_of(config: TrainConfig, step: int) -> tuple[ItemNumber, ...]:
    """The items of a step, the first being 1, where all before are sealed."""
    size = config.data.units_per_step
    return tuple(map(ItemNumber, range((step - 1) * size, step * size)))


def new_stage(config: TrainConfig) -> Stage:
    """The whole model in one stage, at its initial weights."""
    return Stage(config.model, whole_model(config.model), config.optimizer)


def saved(stage: Stage, folder: Path, step: int) -> Path:
    """Its checkpoint after a step, written into `folder`."""
    state = StageState(StageIndex(0), stage, 1)
    state.save(folder, RoundNumber(step))
    return state.checkpoint(folder, RoundNumber(step))


def train(
    stage: Stage,
    config: TrainConfig,
    rows: UnitRows,
    steps: Iterable[int],
    *,
    num_chunks: int = 3,
) -> Run:
    """Train the steps."""
    run = Run()
    for step in steps:
        losses = []
        for unit in items_of(config, step):
            inputs = UnitInputs(rows_RT=rows_tensor(rows.load(unit)))
            losses.append(float(stage.forward(unit, inputs)))
            stage.backward(unit)
        _average_and_apply(stage, num_chunks)
        run.losses.append(sum(losses) / len(losses))
        run.roots.append(stage.roots().state)
    return run


def sealed_norm(norms_squared: Iterable[int]) -> int:
    """Global gradient norm in 1e-9 of chunks with these squared norms, as a seal states it."""
    return isqrt(sum(norms_squared) * 10**6)


def _from_wire(data: bytes | memoryview) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


def _average_and_apply(stage: Stage, num_chunks: int) -> None:
    # One peer: the mean of one part, by way of its wire bytes, then the sealed norm.
    parts = [
        weighted_mean([_from_wire(to_wire(part))], [stage.num_samples])
        for part in stage.mean_buckets(num_chunks)
    ]
    averages = (_from_wire(to_wire(part)) for part in parts)
    stage.apply(averages, sealed_norm(norm_squared(to_wire(part)) for part in parts))
