"""A small job cut into stages, without a swarm: items go up and down, and gradients are exchanged.

Peers of a stage have an equal share of the items each; what they exchange travels as bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.terms.digest import digest
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import DataSpec, JobSpec, Seal
from contracts.terms.work import Leaf, Output
from tests.numerics.loop import items_of, sealed_norm, synthetic_corpus
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.fakes.memory_source import MemorySource, at_once, ended, make_seal
from tests.support.history import make_spec
from training.config import TrainConfig, model_spec, optimizer_spec, train_config
from training.data.loading import corpus_rows
from training.recipes import micro
from training.strategies.every_step.strategy import EveryStepWithTorch
from training.strategies.port import Direction, Shard
from training.strategies.registry import strategy_of
from training.strategies.state_files import StageState

CORPUS = synthetic_corpus()
BLOBS = MemoryBlobs(CORPUS.blobs)
NUM_CHUNKS = 3
ITEMS = tuple(map(ItemNumber, range(4)))
FIRST = StepNumber(1)


def three_layers() -> TrainConfig:
    """Three layers, each of which may be a stage."""
    config = micro()
    return replace(config, model=replace(config.model, num_layers=3))


def spec_of(*layer_ends: int, config: TrainConfig | None = None, **changed: Any) -> JobSpec:
    """A job that is cut behind these layers, by default of three layers and four small items.

    `changed`: codecs and whatever else `make_spec` takes; `tied_head`.
    """
    is_default = config is None
    config = config or three_layers()
    data = replace(config.data, rows_per_unit=2, units_per_step=4) if is_default else config.data
    model = replace(config.model, tied_head=changed.pop("tied_head", config.model.tied_head))
    values: dict[str, Any] = {
        "model": model_spec(model),
        "optimizer": optimizer_spec(config.optimizer),
        "data": DataSpec(
            manifest=CORPUS.manifest.digest(), seed=config.data.seed, tokenizer=ZERO_DIGEST
        ),
        "item_flops": (1,) * len(layer_ends),
        "steps": config.num_steps,
        "stages": len(layer_ends),
        "layer_ends": layer_ends,
        "rows_per_unit": data.rows_per_unit,
        "units_per_step": data.units_per_step,
        "chunks": NUM_CHUNKS,
    } | changed
    return make_spec(**values)


def source_of(spec: JobSpec, blobs: MemoryBlobs = BLOBS) -> MemorySource:
    """Rows of a job; no tensors yet."""
    return MemorySource(corpus_rows(spec, blobs).read)


@dataclass
class Peer:
    """A peer of one stage."""

    stage: StageIndex
    strategy: EveryStepWithTorch
    state: StageState
    source: MemorySource

    def run(self, item: ItemNumber, direction: Direction) -> Leaf | None:
        """One pass."""
        return ended(self.strategy.run(item, direction, self.source))

    def done(self, item: ItemNumber, direction: Direction) -> Leaf:
        """The last pass of an item."""
        leaf = self.run(item, direction)
        assert leaf is not None
        return leaf

    def shards(self, items: Iterable[ItemNumber]) -> list[tuple[Output, bytes]]:
        """What it claims of these items, whole."""
        return list(self.strategy.commit(frozenset(items)).shards)


def peer_of(
    spec: JobSpec,
    stage: int,
    source: MemorySource | None = None,
    device: str = "cpu",
    blobs: MemoryBlobs = BLOBS,
) -> Peer:
    """A peer at the initial weights, in round 1."""
    made = strategy_of(spec, blobs, at_once, device=device)
    assert isinstance(made, EveryStepWithTorch)
    state = made.first_state(StageIndex(stage))
    made.start(state, FIRST)
    return Peer(StageIndex(stage), made, state, source or source_of(spec))


class Line:
    """A peer or more of each stage, which have each other's tensors."""

    def __init__(self, spec: JobSpec, peers_per_stage: int = 1, device: str = "cpu") -> None:
        self.spec, self.source = spec, source_of(spec)
        self.peers = [
            [peer_of(spec, stage, self.source, device) for _ in range(peers_per_stage)]
            for stage in range(spec.batch.stages)
        ]

    @property
    def firsts(self) -> list[Peer]:
        """One peer of each stage."""
        return [peers[0] for peers in self.peers]

    def _of(self, item: ItemNumber) -> list[Peer]:
        return [peers[item % len(peers)] for peers in self.peers]

    def trip(self, item: ItemNumber) -> list[Leaf]:
        """An item up and down through all stages; what each has to say of it."""
        *others, last = self._of(item)
        for peer in others:
            peer.run(item, "forward")
        leaves = [last.done(item, "whole")]
        for peer in reversed(others):
            leaves.insert(0, peer.done(item, "backward"))
        return leaves

    def losses(self, items: Sequence[ItemNumber]) -> list[int]:
        """Losses of items that go through, 1e-6 nats."""
        return [next(leaf.numbers[0] for leaf in self.trip(item) if leaf.numbers) for item in items]

    def update(self, step: int, items: Sequence[ItemNumber]) -> Seal:
        """Exchange the gradients of items that went through, and apply what a seal would name."""
        chunking, buckets, norms = self.spec.chunking, {}, []
        claims: dict[Digest, tuple[Peer, int, list[tuple[Output, bytes]]]] = {}
        for stage, peers in enumerate(self.peers):
            for place, peer in enumerate(peers):
                own = [item for item in items if item % len(peers) == place]
                name = digest("test claim", bytes([stage, place]))
                claims[name] = peer, len(own), peer.shards(own)
        for bucket in chunking.all:
            groups, parts, weights = chunking.stages_of(bucket), [], {}
            for name, (peer, weight, shards) in claims.items():
                if peer.stage in groups:
                    weights[name] = (peer.stage, weight)
                    parts.append(Shard(name, shards[bucket[1]][1]))
            reducer = self.firsts[bucket[0]].strategy
            output, buckets[bucket] = reducer.reduce(bucket, iter(parts), weights)
            norms.append(output.norm_squared)
        seal = make_seal(step, sealed_norm(norms))
        for peer in (peer for peers in self.peers for peer in peers):
            own_buckets = (buckets[bucket] for bucket in chunking.of_stage(peer.stage))
            peer.strategy.apply(peer.state, own_buckets, seal)
            peer.strategy.start(peer.state, StepNumber(step + 1))
        return seal

    def train(self, steps: Iterable[int]) -> list[float]:
        """Mean losses of whole steps, in nats."""
        spec, means = self.spec, []
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
        for step in steps:
            losses = self.losses(items_of(config, step))
            self.update(step, items_of(config, step))
            means.append(sum(losses) / len(losses) / 1e6)
        return means
