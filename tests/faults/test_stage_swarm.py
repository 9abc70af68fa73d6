"""The same swarm in one event loop with the real stage: three peers, equal bytes, plain result."""

from pathlib import Path

import pytest
import torch

from contracts.terms.ids import StepNumber, UnitId
from contracts.terms.messages import DataSpec
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers
from training.config import model_spec, optimizer_spec, whole_model
from training.data.corpus import ShardedCorpus, builtin_files, read_corpus, shard_corpus
from training.data.loading import MemoryBlobs
from training.flops import unit_flops
from training.recipes import micro
from training.worker.ports import Compute
from training.worker.stage_compute import StageCompute

NUM_STEPS = 4
LOSS_TOLERANCE = 5  # 1e-6 nats: fp32 sums in another order
WEIGHTS_TOLERANCE = 2e-5  # AdamW's first steps divide by small second moments


@pytest.fixture(scope="module")
def corpus() -> ShardedCorpus:
    return shard_corpus(read_corpus(builtin_files(), max_bytes=60_000), shard_bytes=4096)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def stage_swarm(folder: Path, corpus: ShardedCorpus, *workers: str) -> MemorySwarm:
    config = micro(num_steps=NUM_STEPS)
    papers = make_papers(
        *workers,
        model=model_spec(config.model),
        optimizer=optimizer_spec(config.optimizer),
        data=DataSpec(manifest=corpus.manifest.digest(), seed=0),
        unit_flops=(unit_flops(config.model, whole_model(config.model), 2),),
        steps=NUM_STEPS,
        units_per_step=6,
        rows_per_unit=2,
        chunks=4,
        checkpoint_every=2,
        validate_every=4,
    )

    def make_compute() -> Compute:
        return StageCompute(papers.spec.message, MemoryBlobs(corpus.blobs))

    return MemorySwarm(papers, folder, make_compute)


def plain(swarm: MemorySwarm, corpus: ShardedCorpus) -> tuple[StageCompute, dict[int, float]]:
    """One stage, all units, its own norm: no messages and no chunks of anybody else."""
    compute, losses = StageCompute(swarm.papers.spec.message, MemoryBlobs(corpus.blobs)), {}
    for step in range(1, NUM_STEPS + 1):
        leaves = [compute.add_unit(StepNumber(step), UnitId(unit)) for unit in range(6)]
        losses[step] = sum(leaf.loss or 0 for leaf in leaves) / len(leaves)
        pieces = compute.gradient()
        norm = round(sum(piece.norm_squared for piece in pieces) ** 0.5 * 1e3)
        compute.apply([piece.data for piece in pieces], norm)
    return compute, losses


def weights_of(compute: Compute) -> torch.Tensor:
    assert isinstance(compute, StageCompute)
    return torch.cat([tensor.flatten() for tensor in compute.weights().values()]).clone()


async def test_swarm__three_peers_with_the_real_stage__equal_bytes_and_the_plain_result(
    tmp_path: Path, corpus: ShardedCorpus
) -> None:
    swarm = stage_swarm(tmp_path, corpus, "ann", "bob", "cem")
    swarm.deadly = {(COORDINATOR, "grad_commit_stored", 3): "bob"}

    await swarm.run(timeout=60)

    expected, losses = plain(swarm, corpus)
    assert swarm.restarts == 1
    assert len(swarm.weights_roots()) == 1
    assert swarm.losses() == pytest.approx(losses, abs=LOSS_TOLERANCE)
    difference = weights_of(swarm.computes["ann"]) - weights_of(expected)
    assert float(difference.abs().max()) <= WEIGHTS_TOLERANCE


async def test_swarm__one_peer_with_the_real_stage__is_the_plain_run_byte_for_byte(
    tmp_path: Path, corpus: ShardedCorpus
) -> None:
    swarm = stage_swarm(tmp_path, corpus, "ann")

    await swarm.run(timeout=60)

    expected, losses = plain(swarm, corpus)
    assert swarm.losses() == pytest.approx(losses, abs=1)
    assert swarm.weights_roots() == {expected.roots().weights}
