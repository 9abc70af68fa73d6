"""The same swarm in one event loop with the real stage: equal bytes, plain result, also with kills.

`tests/numerics/test_swarm.py` compares undisturbed swarms with a model of which no line is ours.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from training.config import TrainConfig
from training.data.corpus import ShardedCorpus, builtin_files, read_corpus, shard_corpus
from training.models.parameters import EMBEDDING
from training.recipes import micro
from training.worker.ports import Compute
from training.worker.stage_compute import StageCompute

NUM_STEPS, UNITS = 4, 6
LOSS_TOLERANCE = 5  # 1e-6 nats: fp32 sums in another order
WEIGHTS_TOLERANCE = 2e-5  # AdamW's first steps divide by small second moments


@pytest.fixture(scope="module")
def corpus() -> ShardedCorpus:
    return shard_corpus(read_corpus(builtin_files(), max_bytes=60_000), shard_bytes=4096)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def configured(*, is_tied: bool = False) -> TrainConfig:
    config = micro(num_steps=NUM_STEPS)
    return replace(
        config,
        model=replace(config.model, tied_head=is_tied),
        data=replace(config.data, units_per_step=UNITS),
    )


def swarm_of(
    folder: Path,
    corpus: ShardedCorpus,
    *workers: str,
    stages: int = 1,
    is_tied: bool = False,
    **rules: int,
) -> MemorySwarm:
    config, manifest = configured(is_tied=is_tied), corpus.manifest.digest()
    changed = {"stages": stages} | rules
    papers = stage_papers(config, manifest, *workers, **changed)
    return stage_swarm(folder, papers, corpus)


def plain(swarm: MemorySwarm, corpus: ShardedCorpus) -> tuple[StageCompute, dict[int, float]]:
    """One stage, all units, its own norm: no messages and no chunks of anybody else."""
    spec = swarm.papers.spec.message
    whole = spec.model_copy(
        update={
            "batch": spec.batch.model_copy(
                update={"stages": 1, "layer_ends": (spec.model.num_layers,)}
            )
        }
    )
    compute, losses = StageCompute(whole, MemoryBlobs(corpus.blobs)), {}
    for step in range(1, NUM_STEPS + 1):
        units = [ItemNumber(unit) for unit in range(UNITS)]
        passed = [compute.forward(StepNumber(step), unit, None) for unit in units]
        losses[step] = sum(each.loss or 0 for each in passed) / len(passed)
        pieces = compute.gradient()
        norm = round(sum(piece.norm_squared for piece in pieces) ** 0.5 * 1e3)
        compute.apply([piece.data for piece in pieces], norm)
    return compute, losses


def weights_of(compute: Compute) -> dict[str, torch.Tensor]:
    assert isinstance(compute, StageCompute)
    return {name: tensor.clone() for name, tensor in compute.weights().items()}


def swarm_weights(swarm: MemorySwarm) -> dict[str, torch.Tensor]:
    """All weights, by name, after checking that members of a stage have equal ones."""
    assert all(len(roots) == 1 for roots in swarm.weights_roots())
    found: dict[str, torch.Tensor] = {}
    for compute in swarm.computes.values():
        found |= weights_of(compute)
    return found


def assert_as_plain(swarm: MemorySwarm, corpus: ShardedCorpus) -> None:
    expected, losses = plain(swarm, corpus)
    failed = [(line["peer"], line["reason"]) for line in swarm.lines("call_failed")]
    assert swarm.losses() == pytest.approx(losses, abs=LOSS_TOLERANCE), failed
    ours, plain_ones = swarm_weights(swarm), weights_of(expected)
    assert ours.keys() == plain_ones.keys()
    for name, tensor in ours.items():
        assert float((tensor - plain_ones[name]).abs().max()) <= WEIGHTS_TOLERANCE


@pytest.mark.parametrize(
    ("teller", "event", "victim", "is_tied"),
    [
        ("bob", "unit_done", "bob", False),
        (COORDINATOR, "average_set_stored", COORDINATOR, False),
        (COORDINATOR, "average_set_stored", "ann", True),
        pytest.param(COORDINATOR, "grad_commit_stored", "bob", False, marks=pytest.mark.nightly),
        pytest.param(COORDINATOR, "units_taken", COORDINATOR, False, marks=pytest.mark.nightly),
    ],
)
async def test_swarm__two_stages_with_the_real_stage_and_a_kill__equals_the_plain_result(
    tmp_path: Path, corpus: ShardedCorpus, teller: str, event: str, victim: str, is_tied: bool
) -> None:
    names = ("ann", "bob", "cem", "dan")
    swarm = swarm_of(tmp_path, corpus, *names, stages=2, is_tied=is_tied)
    swarm.deadly = {(teller, event, 2): victim}
    swarm.together = True  # else the others may have ended before the victim is back

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert_as_plain(swarm, corpus)
    if is_tied:
        assert_copies_equal(swarm)


def assert_copies_equal(swarm: MemorySwarm) -> None:
    copies = [weights_of(compute)[EMBEDDING] for compute in swarm.computes.values()]
    assert all(torch.equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("victim", ["bob", pytest.param("ann", marks=pytest.mark.nightly)])
async def test_swarm__tied_head_and_a_summing_peer_gone_for_good__others_sum_what_both_share(
    tmp_path: Path, corpus: ShardedCorpus, victim: str
) -> None:
    names, rules = ("ann", "bob", "cem", "dan"), {"redo_after": 200, "lease_grace": 200}
    swarm = swarm_of(tmp_path, corpus, *names, stages=2, is_tied=True, **rules)
    swarm.deadly = {(COORDINATOR, "average_set_stored", 2): victim}
    swarm.for_good = frozenset({victim})

    await swarm.run()

    assert swarm.deadly == {}, "the kill has to land"
    assert_copies_equal(swarm)
    assert_as_plain(swarm, corpus)
