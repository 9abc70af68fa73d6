"""Work once more, and how far the claim of it lies from what came out. Uses torch.

A claim is done again whole, in the order of its leaves, from the bytes that its neighbours really
sent. What cannot be read, or is not finite, is as far off as can be (docs/protocol.md 5); so is all
of a claim that leaves out a name, or counts an item from whose bytes nothing finite comes: no
honest peer does so. Whoever may be slashed by what an auditor says can be shown why: see
`recording`.

Invariant: only bytes that have the digest which the claim itself names are held against it.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.ids import StageIndex
from contracts.terms.messages import LOSS_SCALE, JobSpec
from contracts.terms.work import Leaf, LeafNames, WorkClaim, leaf_names
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice
from training.config import slices_of, train_config
from training.data.loading import BlobSource
from training.models.parameters import parameter_shapes
from training.worker.numeric_recipe import NumericRecipe, corpus_rows
from training.worker.ports import Numbers, ReplayedUnit
from training.worker.sealed import SealedClaim
from training.worker.stage_replay import StageReplayer
from verification.auditing.replays import Found, RunningReplay, Source
from verification.distances.comparison import Comparison
from verification.distances.thresholds import (
    INPUT_GRADIENT,
    LOSS,
    MEASURES,
    OUTPUT,
    SATURATED,
    Recipe,
    distance_name,
)
from verification.verdicts import is_complete, kinds_of


class Tensors:
    """Satisfies `program.Repeating` with the real tensors."""

    async def work(self, source: Source, sealed: SealedClaim, seed: bytes) -> Found:
        """See `Repeating.work`."""
        return await replay_claim(source, sealed, seed)

    def mean(
        self, spec: JobSpec, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        """See `Repeating.mean`."""
        return mean_slice(parts, weights, spec.rules.gradient_codec, totals=totals)


async def replay_claim(source: Source, sealed: SealedClaim, seed: bytes) -> Found:
    """Do a claim of work again and compare.

    Raises:
        NotFound: a tensor cannot be found any more.
        Unavailable: whoever has it, or the weights, is not reached. Misbehaved: nobody has the
            right ones.
    """
    claim, spec = sealed.claim, source.spec
    if not is_complete(spec, claim.group, sealed.leaves):
        return Found(_farthest(spec, claim.group), ())
    recipe = Recipe(spec.rules.boundary_codec, spec.rules.gradient_codec)
    comparison, items = Comparison(recipe), list[ReplayedUnit]()
    async with source.replay(claim, seed) as replay:
        for leaf in sealed.leaves:
            names = leaf_names(claim.group, spec.batch.stages, leaf.item)
            x = await _boundary(source, leaf, names.x)
            dy = await _boundary(source, leaf, names.dy)
            done = await replay.item(leaf.item, x, dy)
            await _compare_item(source, leaf, names, replay, done, comparison)
            items.append(done)
        parts = [await source.get(output.digest, "part") for output in claim.outputs]
        projections = tuple(item.projection for item in items)
        if not all(item.is_finite for item in items):
            return Found(_farthest(spec, claim.group), projections)
        own = [piece.data for piece in await replay.gradient()]
        replayed = await replay.parameters(own)
        claimed = await _claimed_gradient(claim, parts, replay, own, replayed)
        await asyncio.to_thread(  # others are answered meanwhile
            lambda: comparison.add_gradient(_tensors(claimed), _tensors(replayed))
        )
    return Found(dict(comparison.distances()), projections)


async def _boundary(source: Source, leaf: Leaf, name: str) -> bytes | None:
    return await source.get(leaf.tensor(name), "boundary") if name else None


def _farthest(spec: JobSpec, stage: StageIndex) -> dict[str, int]:
    """Every distance of a stage, as great as it can be."""
    names = (distance_name(kind, each) for kind in kinds_of(spec, stage) for each in MEASURES)
    return dict.fromkeys(sorted(names), SATURATED)


async def _compare_item(
    source: Source,
    leaf: Leaf,
    names: LeafNames,
    replay: RunningReplay,
    done: ReplayedUnit,
    comparison: Comparison,
) -> None:
    for kind, name, mine in (
        (OUTPUT, names.y, done.y),
        (INPUT_GRADIENT, names.dx, done.dx),
    ):
        data = None
        if (
            not leaf.given
        ):  # else made by a peer that is gone; also fetched where nothing is compared
            data = await _boundary(source, leaf, name)
        if mine is None:
            continue
        own = await replay.boundary(mine.data)
        claim = own if leaf.given else await _readable(replay, data, own)
        comparison.add(kind, _tensor(claim), _tensor(own))
    if done.loss is not None:
        comparison.add(LOSS, _nats(leaf.numbers[0]), _nats(done.loss))


async def _readable(replay: RunningReplay, data: Buffer | None, own: Numbers) -> Numbers:
    if data is None:
        return _not_finite(own.shape)
    try:
        return await replay.boundary(data)
    except (Malformed, NotFinite):
        return _not_finite(own.shape)


async def _claimed_gradient(
    claim: WorkClaim,
    parts: Sequence[bytes],
    replay: RunningReplay,
    own: Sequence[Buffer],
    replayed: Mapping[str, Numbers],
) -> Mapping[str, Numbers]:
    try:
        if [len(part) for part in parts] != [memoryview(part).nbytes for part in own]:
            raise Malformed("parts that nobody can add to those of others")
        norms_squared = [output.norm_squared for output in claim.outputs]
        return await replay.parameters(parts, norms_squared)
    except (Malformed, NotFinite, WrongBytes):
        return {name: _not_finite(each.shape) for name, each in replayed.items()}


def _not_finite(shape: tuple[int, ...]) -> Numbers:
    """What a claim that cannot be read counts as."""
    return Numbers(shape, torch.full(shape, torch.nan).numpy().tobytes())


def _tensors(numbers: Mapping[str, Numbers]) -> dict[str, Tensor]:
    return {name: _tensor(each) for name, each in numbers.items()}


def _tensor(numbers: Numbers) -> Tensor:
    flat = torch.frombuffer(bytearray(numbers.data), dtype=torch.float32)
    return flat.reshape(numbers.shape)


def _nats(loss: int) -> Tensor:
    return torch.tensor([loss / LOSS_SCALE])


# ----------------------------------------------------------- what an outside auditor computes with

_HEADER_BYTES = 2**20  # of a file of weights, at most: names, shapes and roots
_WEIGHT_BYTES = 4


def stage_replayer(
    spec: JobSpec, blobs: BlobSource, stage: StageIndex, *, device: str = "cpu"
) -> StageReplayer:
    """Repeats claims of any stage; raises as `NumericRecipe` and `corpus_rows`."""
    rows = corpus_rows(spec, blobs)
    return StageReplayer(NumericRecipe(spec, rows, stage), device=device)


def most_weight_bytes(spec: JobSpec, stage: StageIndex) -> int:
    """What a file of a stage's weights can have."""
    model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    shapes = parameter_shapes(model, slices_of(model, spec.batch.layer_ends)[stage])
    return _HEADER_BYTES + _WEIGHT_BYTES * sum(map(math.prod, shapes.values()))
