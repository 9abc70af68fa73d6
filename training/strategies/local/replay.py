"""A claim of local steps once more, with torch: the same sealed weights, the same rows, each step.

Invariants: its replica has a state of its own, so the round in work is not touched; every inner
step is a turn of its own. On the same kind of device with the same number of threads it repeats
every byte; on others the path is lost after some hundred steps (README).

A step is compared by its loss and by the eight projections that its leaf holds. Its norm is not:
nothing is computed from it. The difference at the end, with `moments: mean` those too, is compared
with the nearest one that is written as the claim's shards (`LocalCodec.nearest`). What cannot be
read counts as nan, which is as far off as can be (docs/protocol.md 5).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE
from contracts.terms.work import Leaf, WorkClaim, tensor_name
from training.stages.exact import tensors_root
from training.stages.stage import UnitInputs
from training.strategies.local.recipe import LocalRecipe, leaf_numbers, traced_steps
from training.strategies.local.rules import GROUP
from training.strategies.local.trace import SCALE, TracedStep
from training.strategies.port import BASE, Comparison, Compute, Replayed, Source, shard_name
from training.strategies.projections import Projector
from training.strategies.state_files import roots_of_weights


class RoundAgain:
    """The arithmetic of one replay, for the thread that computes."""

    def __init__(
        self,
        recipe: LocalRecipe,
        device: str,
        frozen: Callable[[], Mapping[str, Tensor]],
        claim: WorkClaim,
        seed: bytes,
        weights: Path,
        *,
        is_ahead: bool,
    ) -> None:
        """On the weights in a file; raises as `load_weights`, if they are not under the base."""
        base = recipe.load_base(weights, claim.base)
        stage = recipe.build(base.weights, device, frozen=frozen())
        self._recipe, self._claim, self._views = recipe, claim, stage.layout.views
        self._replica = recipe.replica(stage)
        self._projector = Projector(seed, stage.num_parameters)
        self._root, self._sealed = roots_of_weights(weights).weights, None
        if is_ahead and base.previous is not None:
            self._sealed = self._root, stage.flat_weights.clone()
            stage.flat_weights.copy_(base.previous)
            self._root = tensors_root(self._views(stage.flat_weights).items())
        self._replica.start(recipe.steps_before(claim.numbers[0]), base.moments)
        self.projection = 0
        """1e-6, of the gradient of the newest step that was asked for it."""

    def rebase(self) -> None:
        """What was computed ahead of the round is done: go on from the base."""
        if self._sealed is not None:
            (self._root, weights), self._sealed = self._sealed, None
            self._replica.rebase(weights)

    def step(self, item: ItemNumber, number: int, rows_RT: Tensor, *, is_last: bool) -> TracedStep:
        """The next inner step; with a projection if it is the last one of its item."""
        seed = self._recipe.step_seed(self._root, item, number)
        inputs = {item: UnitInputs(rows_RT=rows_RT)}
        return self._replica.step(inputs, seed, look=self._project if is_last else None)

    def _project(self, gradient: Tensor) -> None:
        self.projection = self._projector.of(gradient.cpu().numpy())

    def differences(self, shards: Sequence[bytes]) -> tuple[Tensor, Tensor]:
        """What is exchanged as it is claimed, and as it is (`Replica.difference`)."""
        self.rebase()
        own = self._replica.difference().cpu()
        try:
            return self._recipe.nearest(own, self._claim, shards), own
        except (Malformed, NotFinite, WrongBytes):
            return torch.full_like(own, torch.nan), own

    def compare(self, comparison: Comparison, claimed: Tensor, own: Tensor) -> None:
        """Compare differences by parameter, and moments as the gradients that they are means of."""
        size = self._recipe.num_parameters
        (told, *others), (mine, *means) = claimed.split(size), own.split(size)
        comparison.add_gradient(self._views(told), self._views(mine))
        for other, mean in zip(others, means, strict=True):
            comparison.add("trace", other, mean)


async def replay_claim(
    recipe: LocalRecipe,
    device: str,
    frozen: Callable[[], Mapping[str, Tensor]],
    compute: Compute,
    claim: WorkClaim,
    leaves: Sequence[Leaf],
    source: Source,
    seed: bytes,
    comparison: Comparison,
) -> Replayed:
    """See `Strategy.replay`; projections are of the last step of each item."""
    path = await source.get(BASE)
    is_ahead = leaves[0].base_round < claim.round
    make = partial(RoundAgain, recipe, device, frozen, claim, seed, path, is_ahead=is_ahead)
    again, projections, is_computable = await compute(make), [], True
    for leaf in leaves:
        if leaf.base_round == claim.round:
            await compute(again.rebase)
        rows = await source.get(tensor_name("rows", GROUP, leaf.item))
        if not is_computable:
            continue  # its rows are evidence alone, as the shards are
        try:
            await _item(leaf, recipe.steps(rows), again, compute, comparison)
            projections.append(again.projection)
        except (Malformed, NotFinite):
            is_computable = False
    shards = [await source.get(shard_name(output.bucket)) for output in claim.outputs]
    if is_computable:
        claimed, own = await compute(lambda: again.differences(shards))
        # Others are computed for meanwhile.
        await asyncio.to_thread(lambda: again.compare(comparison, claimed, own))
    return Replayed(tuple(projections), is_computable)


async def _item(
    leaf: Leaf,
    steps: Sequence[Tensor],
    again: RoundAgain,
    compute: Compute,
    comparison: Comparison,
) -> None:
    told, own = _told(leaf, len(steps)), list[TracedStep]()
    for number, rows_RT in enumerate(steps):
        is_last = number == len(steps) - 1
        step = partial(again.step, leaf.item, number, rows_RT, is_last=is_last)
        own.append(await compute(step))
        compare_steps(comparison, told[number], own[-1])
    mean = leaf.numbers[0] if leaf.numbers else None
    _compare_losses(comparison, mean, leaf_numbers(own)[0])


def _told(leaf: Leaf, num_steps: int) -> Sequence[TracedStep | None]:
    """What a leaf says of each step; nothing if it does not say it of all."""
    try:
        told = traced_steps(leaf.numbers)
    except Malformed:
        told = ()
    return told if len(told) == num_steps else [None] * num_steps


def compare_steps(comparison: Comparison, claimed: TracedStep | None, own: TracedStep) -> None:
    """Compare one step, as a leaf told of it and as it is."""
    replayed = torch.tensor(own.projections) / SCALE
    told, loss = torch.full_like(replayed, torch.nan), None
    if claimed is not None:
        told, loss = torch.tensor(claimed.projections) / SCALE, claimed.loss
    comparison.add("trace", told, replayed)
    _compare_losses(comparison, loss, own.loss)


def _compare_losses(comparison: Comparison, claimed: int | None, own: int) -> None:
    told = torch.nan if claimed is None else claimed / LOSS_SCALE
    comparison.add("loss", torch.tensor([told]), torch.tensor([own / LOSS_SCALE]))
