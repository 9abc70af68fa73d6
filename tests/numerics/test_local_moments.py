"""Rounds that go on from sealed means of moments: what is exchanged, and what a replay sees."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.calibration_devices import capability
from contracts.terms.digest import digest
from contracts.terms.errors import Malformed, WrongBytes
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, StepNumber
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.messages import JobSpec, LocalSpec, ShardCodecName
from contracts.terms.work import Leaf, WorkClaim
from tests.numerics.pipeline import source_of, spec_of
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.fakes.memory_source import MemorySource, at_once, make_seal
from tests.support.history import make_claim
from training.config import OptimizerConfig
from training.recipes import micro
from training.strategies.local.movement import longest_step
from training.strategies.local.outer import apply_root
from training.strategies.local.rules import GROUP
from training.strategies.local.state import LocalState
from training.strategies.local.strategy import LocalWithTorch
from training.strategies.port import BASE, RoundNumber, Shard, shard_name
from verification.distances.comparison import Comparison
from verification.distances.thresholds import Outcome, decide, shipped_calibration
from verification.verdicts import kinds_of, recipe_of

STEPS, ROWS = 5, 2
PEERS = 2
SECOND = RoundNumber(2)
CODECS: tuple[ShardCodecName, ...] = ("none", "bfloat16", "seeded8", "seeded4")
OPTIMIZER = OptimizerConfig(learning_rate=0.001, total_steps=10)


def spec_under(codec: ShardCodecName, **changed: Any) -> JobSpec:
    """Rounds of two peers with one item each."""
    rounds = {
        "inner_steps": STEPS, "segments": 1, "rewarm_steps": 5, "outer_rate": 10**6,
        "outer_momentum": 500_000, "round_time": 1000, "quorum": 1, "moments": "mean",
    }  # fmt: skip
    local = LocalSpec.model_validate(rounds | changed)
    config = micro(num_steps=100)
    return spec_of(
        config.model.num_layers, config=config, tied_head=True, strategy="local", local=local,
        rows_per_unit=ROWS * STEPS, units_per_step=PEERS, gradient_codec=codec,
    )  # fmt: skip


@dataclass
class Work:
    """Of a peer in a round."""

    base: Digest
    leaf: Leaf
    difference: Tensor
    ahead: tuple[Leaf, ...] = ()  # of the claim too


class Job:
    """Replicas of one process: their rounds, and what is sealed of them."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec, self.source = spec, source_of(spec)
        self.strategy = LocalWithTorch(spec, MemoryBlobs({}), at_once)
        self.state: LocalState = self.strategy.first_state(GROUP)

    def work(self, round: int, peer: int) -> Work:
        """One item."""
        item = ItemNumber((round - 1) * PEERS + peer)
        self.strategy.start(self.state, RoundNumber(round))
        leaf = asyncio.run(self.strategy.run(item, "whole", self.source))
        assert leaf is not None
        replica = self.strategy._replica
        assert replica is not None
        return Work(self.state.roots().state, leaf, replica.difference())

    def seal(self, round: int) -> None:
        """A whole round."""
        recipe, shards = self.strategy.recipe, list[list[bytes]]()
        for peer in range(PEERS):
            done = self.work(round, peer)
            made = recipe.shards(done.difference, done.base, done.leaf.item)
            shards.append([data for _, data in made])
        names = [digest("test claim", bytes([peer])) for peer in range(PEERS)]
        buckets = []
        for number, bucket in enumerate(self.spec.chunking.all):
            parts = [Shard(name, own[number]) for name, own in zip(names, shards, strict=True)]
            weights = {name: (GROUP, 1) for name in names}
            buckets.append(self.strategy.reduce(bucket, iter(parts), weights)[1])
        seal = make_seal(round, 1).model_copy(update={"next": PEERS * round, "unsealed": ()})
        self.strategy.apply(self.state, iter(buckets), seal)

    def verdict(self, done: Work, folder: Path) -> Outcome:
        """Of an auditor on what a peer claims of the second round."""
        recipe, file = self.strategy.recipe, folder / "weights"
        self.state.save_weights(file, self.state.roots())
        leaves = (*done.ahead, done.leaf)
        made = [*recipe.shards(done.difference, done.base, leaves[0].item)]
        source: MemorySource = self.source
        source.given = {BASE: file} | {shard_name(out.bucket): data for out, data in made}
        claim: WorkClaim = make_claim(
            "work", job=ZERO_DIGEST, peer=digest("test", b"peer"),
            previous=digest("test", b"seal"), round=SECOND, group=GROUP, base=done.base,
            items=ranges_of([leaf.item for leaf in leaves]), leaves=claim_leaves_root(leaves),
            outputs=tuple(out for out, _ in made),
        )  # fmt: skip
        found = Comparison(recipe_of(self.spec))
        seed = digest("test", b"projections")
        asyncio.run(self.strategy.replay(claim, leaves, source, seed, found))
        kinds, own = kinds_of(self.spec, GROUP), capability()
        limits = shipped_calibration().thresholds(recipe_of(self.spec), kinds, own, own)
        return decide(found.distances(), limits)


def in_the_second_round(codec: ShardCodecName) -> tuple[Job, Work]:
    """What a peer does from moments that are not zero."""
    torch.set_num_threads(1)
    job = Job(spec_under(codec))
    job.seal(1)
    return job, job.work(2, 0)


@pytest.mark.parametrize("codec", CODECS)
def test_replay__round_from_sealed_moments__matches_under_each_codec(
    tmp_path: Path, codec: ShardCodecName
) -> None:
    job, done = in_the_second_round(codec)

    moments = job.state.moments
    assert moments is not None and float(moments.exp_avg_sq.max()) > 0
    assert job.verdict(done, tmp_path) == "match"


def _part(vector: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def changed(difference: Tensor) -> Tensor:
        parts = [*difference.chunk(3)]
        parts[vector] = change(parts[vector])
        return torch.cat(parts)

    return changed


LIES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "weights x 1.1": _part(0, lambda part: 1.1 * part),
    "first moments x 1.1": _part(1, lambda part: 1.1 * part),
    "first moments the other way": _part(1, torch.neg),
    "roots x 1.1": _part(2, lambda part: 1.1 * part),
    "roots of nothing": _part(2, torch.zeros_like),
    "moments of nothing": _part(1, torch.zeros_like),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", LIES)
def test_replay__false_moments_after_true_steps__mismatch(
    tmp_path: Path, lie: str, codec: ShardCodecName
) -> None:
    job, done = in_the_second_round(codec)
    done.difference = LIES[lie](done.difference)

    assert job.verdict(done, tmp_path) == "mismatch"


def test_replay__steps_from_moments_that_are_not_the_sealed_ones__mismatch(tmp_path: Path) -> None:
    job, _ = in_the_second_round("none")
    sealed = job.state.moments
    assert sealed is not None
    kept = sealed.exp_avg.clone()
    sealed.exp_avg.zero_()
    done = job.work(2, 0)
    sealed.exp_avg.copy_(kept)

    assert job.verdict(done, tmp_path) == "mismatch"


def test_weights__moments_in_their_file__are_under_the_root_or_refused(tmp_path: Path) -> None:
    job, done = in_the_second_round("none")
    file, moments = tmp_path / "weights", job.state.moments
    assert moments is not None
    job.state.save_weights(file, job.state.roots())

    job.strategy.need_weights(file, GROUP, done.base)

    roots = job.state.roots()
    moments.exp_avg[0] += 1
    job.state.save_weights(file, roots)
    with pytest.raises(WrongBytes, match="moments root"):
        job.strategy.need_weights(file, GROUP, done.base)


def test_checkpoint__moments__come_back(tmp_path: Path) -> None:
    job, _ = in_the_second_round("seeded4")
    job.state.save(tmp_path, StepNumber(1))
    other = Job(job.spec)

    other.state.load(job.state.checkpoint(tmp_path, StepNumber(1)), job.state.roots().state)

    assert job.state.moments is not None and other.state.moments is not None
    assert torch.equal(other.state.moments.exp_avg, job.state.moments.exp_avg)
    assert other.work(2, 1).leaf == job.work(2, 1).leaf


def test_keep__round_from_sealed_moments__goes_on_where_it_was(tmp_path: Path) -> None:
    job, done = in_the_second_round("none")
    job.strategy.keep(tmp_path / "round")

    job.strategy.start(job.state, SECOND)

    assert job.strategy.resume(tmp_path / "round") == (done.leaf,)
    replica = job.strategy._replica
    assert replica is not None and torch.equal(replica.difference(), done.difference)


def test_apply_root__means_that_no_steps_come_to__are_taken_within_their_bound() -> None:
    most = longest_step(OPTIMIZER.beta1, OPTIMIZER.beta2, math.inf)

    exp_avg, exp_avg_sq = torch.tensor([0.1, 9.0, -9.0, 9.0]), torch.ones(4)
    apply_root(exp_avg, exp_avg_sq, torch.tensor([0.5, 0.5, -0.5, 0.0]), OPTIMIZER)

    assert torch.allclose(exp_avg, torch.tensor([0.1, most / 2, -most / 2, 0.0]))
    assert exp_avg_sq.tolist() == [0.25, 0.25, 0.25, 0.0]


def test_recipe__shards_of_fewer_vectors__refused() -> None:
    recipe = Job(spec_under("none")).strategy.recipe

    assert len(recipe.bounds) == 3 * recipe.batch.chunks
    assert recipe.buckets[-1] == ChunkIndex(3 * recipe.batch.chunks - 1)
    with pytest.raises(Malformed, match="shards, wanted"):
        recipe.difference([b""] * recipe.batch.chunks)
