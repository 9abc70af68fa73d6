"""A claim of work once more, with torch: the same weights, the same bytes, in the order of leaves.

Invariants: its `Stage` has weights and gradient of its own (8 bytes a parameter, no moments), so
the round in work is not touched; whoever replays items in the order in which they were added, on
the same kind of device with the same number of threads, repeats every byte of y, dx, loss and
gradient. Another order, other threads or another device differ in the last digits; how far is for
calibration to say (`verification.distances.calibration`).

A claimed tensor that cannot be read, or is not finite, counts as one of nan, which is as far off as
can be (docs/protocol.md 5). Of a `given` leaf y and dx were made by another, who is gone: they are
fetched, as evidence, and not compared.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import LOSS_SCALE, JobSpec
from contracts.terms.work import Leaf, WorkClaim
from training.stages.checkpoint import load_weights
from training.stages.stage import Stage
from training.strategies.every_step.projections import Projector
from training.strategies.every_step.recipe import Recipe, millionths
from training.strategies.port import (
    BASE,
    Comparison,
    Compute,
    Group,
    Replayed,
    Source,
    shard_name,
)


class Replaying:
    """The part of `port.Strategy` that repeats what others claim."""

    def __init__(self, spec: JobSpec, compute: Compute, device: str) -> None:
        self.spec, self.compute, self.device = spec, compute, device
        self._recipes: dict[Group, Recipe] = {}

    def recipe(self, group: Group) -> Recipe:
        """The numeric recipe of a stage; raises Refused."""
        if group not in self._recipes:
            self._recipes[group] = Recipe(self.spec, group)
        return self._recipes[group]

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """See `Strategy.replay`."""
        recipe, path = self.recipe(claim.group), await source.get(BASE)

        def begin() -> _Replay:
            weights = load_weights(path, recipe.parameter_shapes, claim.base)
            stage = recipe.build(weights, self.device, trains=False)
            return _Replay(recipe, stage, Projector(seed, stage.num_parameters))

        replay = await self.compute(begin)
        passed = [await self._item(leaf, replay, source, comparison) for leaf in leaves]
        is_computable = all(each.is_computable for each in passed)
        names = (shard_name(output.bucket) for output in claim.outputs)
        shards = [await source.get(name) for name in names]  # also where they are evidence alone
        if is_computable:
            gradients = await self.compute(lambda: replay.gradients(claim, shards))
            # Others are computed for meanwhile.
            await asyncio.to_thread(lambda: comparison.add_gradient(*gradients))
        return Replayed(tuple(each.projection for each in passed), is_computable)

    async def _item(
        self, leaf: Leaf, replay: "_Replay", source: Source, comparison: Comparison
    ) -> "_Passed":
        names = replay.recipe.names(leaf.item)

        async def named(name: str) -> bytes | None:
            is_named = name and leaf.tensor(name) != ZERO_DIGEST
            return await source.get(name) if is_named else None

        rows = await source.get(names.rows) if names.rows else None
        x, dy = await named(names.x), await named(names.dy)
        passed = await self.compute(lambda: replay.item(leaf, rows, x, dy))
        for kind, name, own in ("y", names.y, passed.y), ("dx", names.dx, passed.dx):
            data = await named(name)
            if own is not None:
                claimed = own if leaf.given else await self.compute(partial(replay.read, data))
                comparison.add(kind, claimed, own)
        if passed.loss is not None:
            claim = leaf.numbers[0] / LOSS_SCALE if leaf.numbers else torch.nan
            comparison.add("loss", torch.tensor([claim]), torch.tensor([passed.loss / LOSS_SCALE]))
        return passed


@dataclass(frozen=True)
class _Passed:
    """What an item came to when it was repeated; None where the stage has no such tensor."""

    y: Tensor | None = None  # as a receiver reads it
    dx: Tensor | None = None
    loss: int | None = None
    projection: int = 0
    is_computable: bool = True


class _Replay:
    """One replay; what is in it is for the thread that computes."""

    def __init__(self, recipe: Recipe, stage: Stage, projector: Projector) -> None:
        self.recipe, self._stage, self._projector = recipe, stage, projector

    def item(self, leaf: Leaf, rows: bytes | None, x: bytes | None, dy: bytes | None) -> _Passed:
        """Forward and backward of the next item."""
        recipe, stage, names = self.recipe, self._stage, self.recipe.names(leaf.item)
        if (names.x and x is None) or (names.dy and dy is None):
            return _Passed(is_computable=False)  # its leaf names no such tensor
        try:
            output = stage.forward(leaf.item, recipe.inputs(rows, x))
            dx_RTD = stage.backward(leaf.item, None if dy is None else recipe.boundary(dy))
            return _Passed(
                y=self._received(output) if names.y else None,
                dx=None if dx_RTD is None else self._received(dx_RTD),
                loss=None if names.y else millionths(output),
                projection=self._projector.of(stage.gradient_sum.cpu().numpy()),
            )
        except (Malformed, NotFinite):
            return _Passed(is_computable=False)

    def _received(self, tensor_RTD: Tensor) -> Tensor:
        return self.recipe.boundary(self.recipe.sent(tensor_RTD))

    def read(self, data: bytes | None) -> Tensor:
        """A claimed boundary tensor."""
        try:
            if data is not None:
                return self.recipe.boundary(data)
        except (Malformed, NotFinite):
            pass
        return torch.full(self.recipe.shape, torch.nan)

    def gradients(
        self, claim: WorkClaim, shards: Sequence[bytes]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradient by parameter, as it is claimed and as it is."""
        own = list(self.recipe.shards(self._stage))
        replayed = self.recipe.gradient(
            [data for _, data in own], [output.norm_squared for output, _ in own]
        )
        try:
            if [len(data) for data in shards] != [len(data) for _, data in own]:
                raise Malformed("shards that nobody can add to those of others")
            norms = [output.norm_squared for output in claim.outputs]
            return self.recipe.gradient(shards, norms), replayed
        except (Malformed, NotFinite, WrongBytes):
            return {
                name: torch.full_like(each, torch.nan) for name, each in replayed.items()
            }, replayed
