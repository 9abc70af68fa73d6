"""Strategy `every_step` with torch: passes of items through a stage, and the exchange of gradients.

Everything that decides its numbers comes from the signed JobSpec; see `training.stages.stage` for
what is equal byte for byte, and on what that depends (device and number of threads).

Invariants
- The gradient holds exactly the items whose leaves are kept: an error that may have left half of
  an item in it empties both, and `commit` refuses until all are run again.
- A backward pass goes through the forward pass that read the same x; another one is made again.
- Of what is exchanged one bucket is in memory at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.errors import (
    InvariantBroken,
    Malformed,
    NotFinite,
    Refused,
    TallystickError,
    Unavailable,
)
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.work import Leaf, WorkClaim
from training.averaging.sums import mean_slice, vector_of
from training.data.loading import BlobSource, targets_of
from training.models.starting import frozen_weights, starting_weights
from training.stages.exact import millionths
from training.stages.stage import Stage
from training.strategies.every_step.recipe import Recipe, output_of
from training.strategies.every_step.replay import StageAgain, replay_claim
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import (
    Bucket,
    Comparison,
    Compute,
    Direction,
    Draft,
    Group,
    Item,
    Items,
    Piece,
    Replayed,
    RoundNumber,
    Shard,
    Source,
    State,
    Weights,
    in_turn,
    validation_name,
)
from training.strategies.state_files import StageState, load_weights

T = TypeVar("T")
Named: TypeAlias = dict[str, Digest]
"""Tensors of an item by the names of leaves."""


class EveryStepWithTorch(EveryStep):
    """See `port.Strategy`."""

    def __init__(
        self, spec: JobSpec, blobs: BlobSource, compute: Compute, *, device: str = "cpu"
    ) -> None:
        """Of a job; `blobs` has the weights that it starts from."""
        self.spec, self.compute, self.device = spec, compute, device
        self._blobs, self._recipes = blobs, dict[Group, Recipe]()
        self._started: StageState | None = None
        self._round = RoundNumber(0)
        self._forwards: dict[ItemNumber, Named] = {}  # whose graphs may be kept
        self._leaves: dict[ItemNumber, Leaf] = {}  # of what is in the gradient

    def recipe(self, group: Group) -> Recipe:
        """The numeric recipe of a stage; raises Refused, and as `targets_of`."""
        if group not in self._recipes:
            targets = targets_of(self.spec, self._blobs)
            self._recipes[group] = Recipe(self.spec, group, targets)
        return self._recipes[group]

    def first_state(self, group: Group) -> StageState:
        """See `Strategy.first_state`."""
        recipe = self.recipe(group)
        weights = starting_weights(self.spec.model, recipe.config.model, recipe.slice, self._blobs)
        stage = recipe.build(weights, self.device, frozen=self._frozen(group))
        return StageState(group, stage, self.spec.batch.rows_per_unit)

    def _frozen(self, group: Group) -> Mapping[str, Tensor]:
        recipe, model = self.recipe(group), self.spec.model
        return frozen_weights(model, recipe.config.model, recipe.slice, self._blobs, self.device)

    # ------------------------------------------------------------------------------------ items

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, StageState)  # it comes from `first_state`
        self._started, self._round = state, round
        self._forget()

    def start_ahead(self, items: Items) -> None:
        """See `Strategy.start_ahead`."""
        raise Refused("gradients are of the newest weights alone", items=sorted(items))

    def leaves(self) -> tuple[Leaf, ...]:
        """See `Strategy.leaves`."""
        return tuple(self._leaves.values())

    def _forget(self) -> None:
        self._forwards.clear()
        self._leaves.clear()
        self._stage.begin_step()

    @property
    def _state(self) -> StageState:
        if self._started is None:
            raise InvariantBroken("no round was started")
        return self._started

    @property
    def _stage(self) -> Stage:
        return self._state.stage

    @property
    def _recipe(self) -> Recipe:
        return self.recipe(self._state.group)

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`; of what came in wrong, the error's data name the `digest`."""
        if direction == "evaluate":
            return await self._evaluate(item, source)
        names = self._recipe.names(item)
        if (direction == "whole") != (not names.dy):
            raise Refused(f"this stage has no {direction} pass of an item")
        if item in self._leaves:
            raise Refused(f"item {item} is in the gradient already", unit=item)
        is_kept = direction == "backward" and self._keeps(item, source)
        rows, x = (None, None) if is_kept else await self._read(names.rows, names.x, source)
        dy = await source.get(names.dy) if direction == "backward" else None

        def work() -> Leaf | None:
            output = None if is_kept else self._forward(item, rows, x, source)
            return None if direction == "forward" else self._backward(item, dy, output, source)

        return await self.compute(lambda: self._whole(work))

    async def _evaluate(self, item: Item, source: Source) -> Leaf | None:
        recipe, names = self._recipe, self._recipe.names(item)
        rows, x = await self._read(names.rows and validation_name(item), names.x, source)

        def work() -> Leaf | None:
            inputs = recipe.inputs(rows, x)
            if names.y:
                source.put(names.y, recipe.sent(self._stage.outputs(inputs)))
                return None
            rows_RT = cast(Tensor, inputs.rows_RT)
            taken = rows_RT[:, :-1] if inputs.x_RTD is None else inputs.x_RTD
            losses_RT = self._stage.losses(taken, rows_RT[:, 1:])
            if inputs.targets_RT is not None:
                losses_RT = losses_RT[inputs.targets_RT.to(losses_RT.device)]
            loss = millionths(losses_RT.mean())
            return self._leaf(item, {}, (loss,))

        return await self.compute(lambda: self._whole(work))

    @staticmethod
    async def _read(rows: str, x: str, source: Source) -> tuple[bytes | None, bytes | None]:
        return await source.get(rows) if rows else None, await source.get(x) if x else None

    def _keeps(self, item: Item, source: Source) -> bool:
        """Whether the graph that is kept is that of the pass to go back through."""
        x = self._recipe.names(item).x
        if item not in self._forwards or not self._stage.keeps(item):
            return False
        return not x or self._forwards[item][x] == source.digest(x)

    def _whole(self, work: Callable[[], T]) -> T:
        """Do something that may break in the middle, and then leaves an empty gradient."""
        try:
            return work()
        except (RuntimeError, MemoryError) as error:  # of torch: half of an item may be in
            self._forget()
            raise Unavailable(f"a pass broke off: {error}") from error
        except TallystickError:
            if set(self._stage.units) != set(self._leaves):  # in, but what came out is not kept
                self._forget()
            raise

    def _forward(self, item: Item, rows: bytes | None, x: bytes | None, source: Source) -> Tensor:
        recipe, names, made = self._recipe, self._recipe.names(item), dict[str, Digest]()
        if rows is not None:
            made[names.rows] = recipe.forms.digest("rows", rows)
        if x is not None:
            made[names.x] = source.digest(names.x)
        with _blaming(made.get(names.x)):
            output = self._stage.forward(item, recipe.inputs(rows, x, item))
        if names.y:
            made[names.y] = source.put(names.y, recipe.sent(output))
        self._forwards[item] = made
        return output

    def _backward(
        self, item: Item, dy: bytes | None, output: Tensor | None, source: Source
    ) -> Leaf:
        recipe, names = self._recipe, self._recipe.names(item)
        made = self._forwards.pop(item)
        if dy is not None:
            made[names.dy] = source.digest(names.dy)
        with _blaming(made.get(names.dy)):
            dy_RTD = None if dy is None else recipe.boundary(dy)
            dx_RTD = self._stage.backward(item, dy_RTD)
        if dx_RTD is not None:
            made[names.dx] = source.put(names.dx, recipe.sent(dx_RTD))
        has_loss = output is not None and not names.y
        loss = (millionths(output),) if output is not None and has_loss else ()
        self._leaves[item] = self._leaf(item, made, loss)
        return self._leaves[item]

    def _leaf(self, item: Item, made: Named, numbers: tuple[int, ...]) -> Leaf:
        return Leaf(
            item=item,
            base_round=self._round,
            given=False,
            tensors=tuple(sorted(made.items())),
            numbers=numbers,
        )

    # --------------------------------------------------------------------------------- exchange

    def keep(self, file: Path) -> None:
        """See `Strategy.keep`: what items take and make is on disk by digest."""

    def resume(self, file: Path) -> tuple[Leaf, ...]:
        """See `Strategy.resume`."""
        return ()

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        if not items or items != set(self._leaves) or items != set(self._stage.units):
            raise Refused("the gradient is not of these items", items=sorted(self._leaves))
        leaves = tuple(self._leaves[item] for item in sorted(items))
        return Draft(leaves, iter(self._recipe.shards(self._stage)))

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`: the mean of each group that has shards, all added in one go."""
        totals = Counter[Group]()
        for group, weight in weights.values():
            totals[group] += weight
        made = mean_slice(
            in_turn(shards, weights),
            [weight for _, weight in weights.values()],
            self.spec.rules.mean_codec,
            totals=[totals[group] for group, _ in weights.values()],
        )
        return output_of(bucket[1], made), made.data

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> StageState:
        """See `Strategy.apply`."""
        assert isinstance(state, StageState)
        codec = self.spec.rules.mean_codec
        state.stage.apply((vector_of(bucket, codec) for bucket in buckets), seal.gradient_norm)
        if state is self._started:
            self._forget()
        return state

    # ----------------------------------------------------------------------------------- audits

    def need_weights(self, file: Path, group: Group, base: Digest) -> None:
        """See `Strategy.need_weights`."""
        load_weights(file, self.recipe(group).parameter_shapes, base)

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """See `Strategy.replay`."""
        frozen = partial(self._frozen, claim.group)
        begin = partial(StageAgain, self.recipe(claim.group), claim, seed, self.device, frozen)
        return await replay_claim(begin, self.compute, claim, leaves, source, comparison)


@contextmanager
def _blaming(digest: Digest | None) -> Iterator[None]:
    """An error of a tensor that came in names it: it is whoever made it that is to blame."""
    try:
        yield
    except (Malformed, NotFinite) as error:
        if digest is not None:
            error.data.setdefault("digest", digest.hex())
        raise
