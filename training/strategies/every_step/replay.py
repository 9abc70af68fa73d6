"""A claim of work once more, with torch: the same weights, the same bytes, in the order of leaves.

Invariants: its `Stage` has weights and gradient of its own (8 bytes a parameter, no moments), so
the round in work is not touched; whoever replays items in the order in which they were added, on
the same kind of device with the same number of threads, repeats every byte of y, dx, loss and
gradient. Another order, other threads or another device differ in the last digits; how far is for
calibration to say (`bench.calibration_table`).

A claimed tensor that cannot be read, or is not finite, counts as one of nan, which is as far off as
can be (docs/protocol.md 5). Of a `given` leaf y and dx were made by another, who is gone: they are
neither fetched, as nobody is to blame who has lost them, nor compared.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE
from contracts.terms.work import Leaf, LeafNames, WorkClaim
from training.stages.exact import millionths
from training.strategies.every_step.recipe import Recipe
from training.strategies.port import BASE, Comparison, Compute, Replayed, Source, shard_name
from training.strategies.projections import Projector
from training.strategies.state_files import load_weights

Gradient: TypeAlias = dict[str, Tensor]
"""By parameter."""


@dataclass(frozen=True)
class Passed:
    """What an item came to when it was repeated; None where the stage has no such tensor."""

    y: Tensor | None = None  # as a receiver reads it
    dx: Tensor | None = None
    loss: int | None = None  # 1e-6 nats
    projection: int = 0  # 1e-6, of the gradient so far
    is_computable: bool = True


class StageAgain:
    """The arithmetic of one replay, for the thread that computes, with a stage of its own."""

    def __init__(
        self,
        recipe: Recipe,
        claim: WorkClaim,
        seed: bytes,
        device: str,
        frozen: Callable[[], Mapping[str, Tensor]],
        weights: Path,
    ) -> None:
        """On the weights in a file; raises as `load_weights`, if they are not under the base."""
        tensors = load_weights(weights, recipe.parameter_shapes, claim.base)
        self._recipe = recipe
        self._stage = recipe.build(tensors, device, frozen=frozen(), trains=False)
        self._projector = Projector(seed, self._stage.num_parameters)

    def names(self, item: ItemNumber) -> LeafNames:
        """What leaves call the tensors of an item."""
        return self._recipe.names(item)

    def item(self, leaf: Leaf, rows: bytes | None, x: bytes | None, dy: bytes | None) -> Passed:
        """Forward and backward of the next item."""
        recipe, stage = self._recipe, self._stage
        try:
            output = stage.forward(leaf.item, recipe.inputs(rows, x, leaf.item))
            dx_RTD = stage.backward(leaf.item, None if dy is None else recipe.boundary(dy))
            return Passed(
                y=None if recipe.slice.has_head else self._received(output),
                dx=None if dx_RTD is None else self._received(dx_RTD),
                loss=millionths(output) if recipe.slice.has_head else None,
                projection=self._projector.of(stage.gradient_sum.cpu().numpy()),
            )
        except (Malformed, NotFinite):
            return Passed(is_computable=False)

    def _received(self, tensor_RTD: Tensor) -> Tensor:
        return self._recipe.boundary(self._recipe.sent(tensor_RTD))

    def read(self, data: bytes | None) -> Tensor:
        """The numbers of a claimed boundary tensor."""
        try:
            if data is not None:
                return self._recipe.boundary(data)
        except (Malformed, NotFinite):
            pass
        return torch.full(self._recipe.shape, torch.nan)

    def gradients(self, claim: WorkClaim, shards: Sequence[bytes]) -> tuple[Gradient, Gradient]:
        """The gradient as it is claimed, and as it is."""
        outputs, mine = zip(*self._recipe.shards(self._stage), strict=True)
        own = self._recipe.gradient(mine, [output.norm_squared for output in outputs])
        try:
            if list(map(len, shards)) != list(map(len, mine)):
                raise Malformed("shards that nobody can add to those of others")
            return self._recipe.gradient(shards, [o.norm_squared for o in claim.outputs]), own
        except (Malformed, NotFinite, WrongBytes):
            return {name: torch.full_like(each, torch.nan) for name, each in own.items()}, own


async def replay_claim(
    begin: Callable[[Path], StageAgain],
    compute: Compute,
    claim: WorkClaim,
    leaves: Sequence[Leaf],
    source: Source,
    comparison: Comparison,
) -> Replayed:
    """See `Strategy.replay`; `begin` makes the arithmetic, on a file of weights."""
    path = await source.get(BASE)
    again = await compute(partial(begin, path))
    passed = [await _item(leaf, again, compute, source, comparison) for leaf in leaves]
    is_computable = all(each.is_computable for each in passed)
    names = (shard_name(output.bucket) for output in claim.outputs)
    shards = [await source.get(name) for name in names]  # also where they are evidence alone
    if is_computable:
        claimed, own = await compute(lambda: again.gradients(claim, shards))
        # Others are computed for meanwhile.
        await asyncio.to_thread(lambda: comparison.add_gradient(claimed, own))
    return Replayed(tuple(each.projection for each in passed), is_computable)


async def _item(
    leaf: Leaf, again: StageAgain, compute: Compute, source: Source, comparison: Comparison
) -> Passed:
    names = again.names(leaf.item)

    async def named(name: str) -> bytes | None:
        is_named = name and leaf.tensor(name) != ZERO_DIGEST
        return await source.get(name) if is_named else None

    rows = await source.get(names.rows) if names.rows else None
    x, dy = await named(names.x), await named(names.dy)
    if (names.x and x is None) or (names.dy and dy is None):
        return Passed(is_computable=False)
    passed = await compute(lambda: again.item(leaf, rows, x, dy))
    for kind, name, own in ("y", names.y, passed.y), ("dx", names.dx, passed.dx):
        data = None if leaf.given else await named(name)
        if own is not None:
            claimed = own if leaf.given else await compute(partial(again.read, data))
            comparison.add(kind, claimed, own)
    if passed.loss is not None:
        claim = leaf.numbers[0] / LOSS_SCALE if leaf.numbers else torch.nan
        comparison.add("loss", torch.tensor([claim]), torch.tensor([passed.loss / LOSS_SCALE]))
    return passed
