"""Strategy `local` with torch: items are segments of one replica's inner steps in a round.

Everything that decides its numbers comes from the signed JobSpec and from sealed state.

Invariants
- The working weights are those of a round's start after the segments whose leaves are kept, in the
  order of their items; an error that may have left half of one in them starts the round anew, and
  `commit` refuses until all are run again.
- With `overlap` segments that no claim of their round covers go on in the next one, if its update
  is of the state that they began with: at the first boundary after it the difference of the sealed
  weights is added (`Replica.rebase`). Whose leaves are of the round before says so.
- The sealed state changes in `apply` alone, to equal bytes everywhere.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor
from typing_extensions import Buffer

from contracts.terms.encoding import Value
from contracts.terms.errors import (
    InvariantBroken,
    Malformed,
    Refused,
    Unavailable,
)
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber, count
from contracts.terms.messages import MILLION, JobSpec, Seal
from contracts.terms.work import Leaf, WorkClaim, tensor_name
from training.data.loading import BlobSource
from training.models.starting import frozen_weights, starting_weights
from training.stages.exact import device_class, millionths, tensors_root, weighted_mean
from training.stages.stage import UnitInputs
from training.strategies.local.inner import Replica
from training.strategies.local.kept import read_about, read_vectors, write_vectors
from training.strategies.local.movement import ROOTS
from training.strategies.local.outer import apply_outer, apply_root
from training.strategies.local.recipe import LocalRecipe, leaf_numbers
from training.strategies.local.replay import replay_claim
from training.strategies.local.rules import GROUP, Local
from training.strategies.local.state import LocalState
from training.strategies.local.trace import TracedStep
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

AT_ONCE = 0.05
"""Seconds after which others may compute: of a small model several steps, of a large one a step."""


class LocalWithTorch(Local):
    """See `port.Strategy`."""

    def __init__(
        self, spec: JobSpec, blobs: BlobSource, compute: Compute, *, device: str = "cpu"
    ) -> None:
        """Of a job; `blobs` has the weights that it starts from."""
        super().__init__(spec)
        self.spec, self.compute, self.device = spec, compute, device
        self.recipe, self._blobs = LocalRecipe(spec), blobs
        self._started: LocalState | None = None
        self._round, self._base = RoundNumber(0), Digest(bytes(32))
        self._replica: Replica | None = None  # since the first step of the round
        self._replica_round = RoundNumber(0)  # whose sealed weights it is on
        self._leaves: dict[ItemNumber, Leaf] = {}  # of the segments that are in the weights
        self._under_way: ItemNumber | None = None  # a segment that is in them in part
        self._again: Items = frozenset()  # see `start_ahead`

    def first_state(self, group: Group) -> LocalState:
        """See `Strategy.first_state`."""
        if group != GROUP:
            raise Refused(f"there is no group {group}, all peers are in group {GROUP}")
        recipe = self.recipe
        weights = starting_weights(self.spec.model, recipe.config.model, recipe.slice, self._blobs)
        stage = recipe.build(weights, self.device, frozen=self._frozen())
        return LocalState(GROUP, recipe, stage)

    def _frozen(self) -> Mapping[str, Tensor]:
        recipe, model = self.recipe, self.spec.model
        return frozen_weights(model, recipe.config.model, recipe.slice, self._blobs, self.device)

    # ------------------------------------------------------------------------------------ items

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, LocalState)  # it comes from `first_state`
        goes_on = self._goes_on(state, round)
        self._started, self._round, self._base = state, round, state.roots().state
        if not goes_on:
            self._forget()

    def _goes_on(self, state: LocalState, round: RoundNumber) -> bool:
        replica, ahead = self._replica, RoundNumber(round - 1)
        if replica is None or state.previous is None or state is not self._started:
            return False
        if (self._round, self._replica_round) != (ahead, ahead):
            return False
        is_ahead = all(leaf.base_round == ahead for leaf in self._leaves.values())
        return is_ahead and replica.began_with(state.previous)

    def start_ahead(self, items: Items) -> None:
        """See `Strategy.start_ahead`."""
        if self._state.previous is None:
            raise Refused("nobody works ahead in this job")
        self._again = items

    def leaves(self) -> tuple[Leaf, ...]:
        """See `Strategy.leaves`."""
        return tuple(self._leaves.values())

    def _forget(self) -> None:
        self._leaves.clear()
        self._replica, self._under_way, self._again = None, None, frozenset()

    @property
    def _state(self) -> LocalState:
        if self._started is None:
            raise InvariantBroken("no round was started")
        return self._started

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        if direction == "evaluate":
            rows = await source.get(validation_name(item))
            return await self.compute(lambda: self._evaluated(item, rows))
        if direction != "whole":
            raise Refused(f"a replica has no {direction} pass of an item")
        if item in self._leaves:
            raise Refused(f"item {item} is in the weights already", unit=item)
        rows = await source.get(tensor_name("rows", GROUP, item))
        return await self._segment(item, rows)

    def _evaluated(self, item: Item, rows: bytes) -> Leaf:
        """The loss of the sealed weights on validation rows; working ones are put aside for it."""
        working = self._state.stage.flat_weights
        aside = working.clone() if self._replica is not None else None
        working.copy_(self._state.flat_weights)
        try:
            rows_RT = self.recipe.rows_at_once(rows)
            loss = self._state.stage.losses(rows_RT[:, :-1], rows_RT[:, 1:]).mean()
        finally:
            if aside is not None:
                working.copy_(aside)
        return self._leaf(item, self._round, (), (millionths(loss),))

    async def _segment(self, item: ItemNumber, rows: bytes) -> Leaf:
        """Compute an item, some steps at a time: others come between if the caller has no turn."""
        recipe, traced = self.recipe, list[TracedStep]()
        steps = recipe.steps(rows)
        try:
            replica, round, weights = await self.compute(lambda: self._at_boundary(item))
        except (RuntimeError, MemoryError) as error:
            self._forget()
            raise _broken_off(error) from error

        def some_steps() -> None:
            self._need(replica)
            began = time.monotonic()
            for number in range(len(traced), len(steps)):
                inputs = {item: UnitInputs(rows_RT=steps[number])}
                traced.append(replica.step(inputs, recipe.step_seed(weights, item, number)))
                if time.monotonic() - began >= AT_ONCE:
                    break

        def end() -> Leaf:
            self._need(replica)
            named = (tensor_name("rows", GROUP, item), recipe.forms.digest("rows", rows))
            leaf = self._leaves[item] = self._leaf(item, round, (named,), leaf_numbers(traced))
            self._under_way = None
            return leaf

        try:
            while len(traced) < len(steps):
                await self.compute(some_steps)
            return await self.compute(end)
        except BaseException as error:
            if self._replica is replica:  # there may be half of the segment in it
                self._forget()
            if isinstance(error, RuntimeError | MemoryError):  # of torch
                raise _broken_off(error) from error
            raise

    def _need(self, replica: Replica) -> None:
        if replica is not self._replica:
            raise Unavailable("the round was begun anew in the middle of a segment")

    def _at_boundary(self, item: ItemNumber) -> tuple[Replica, RoundNumber, Digest]:
        if self._under_way is not None:
            raise Unavailable(f"item {self._under_way} is under way")
        state = self._state
        weights, root, round = state.flat_weights, state.roots().weights, self._round
        if item in self._again and state.previous is not None:
            weights, round = state.previous, RoundNumber(round - 1)
            root = tensors_root(state.stage.layout.views(weights).items())
        replica = self._replica or self._begin(weights, round, item)
        if self._replica_round != round:
            replica = self._rebased()
        self._under_way = item
        return replica, round, root

    def _begin(self, weights: Tensor, round: RoundNumber, item: ItemNumber) -> Replica:
        stage = self._state.stage
        stage.flat_weights.copy_(weights)
        replica = self.recipe.replica(stage)
        replica.start(self.recipe.steps_before(item), self._state.moments)
        self._replica, self._replica_round = replica, round
        return replica

    def _rebased(self) -> Replica:
        """The replica on the round's sealed weights."""
        assert self._replica is not None  # something was computed
        if self._replica_round != self._round:
            self._replica.rebase(self._state.flat_weights)
            self._replica_round = self._round
        return self._replica

    def keep(self, file: Path) -> None:
        """See `Strategy.keep`."""
        if self._leaves and self._under_way is None:
            replica = self._rebased()
            done: dict[str, Value] = {
                "steps": replica.num_steps,
                "leaves": [leaf.value() for leaf in self._leaves.values()],
            }
            try:
                write_vectors(file, done | self._place(), replica.vectors)
            except (RuntimeError, MemoryError) as error:  # of torch
                raise Unavailable(f"a round cannot be kept: {error}") from error

    def resume(self, file: Path) -> tuple[Leaf, ...]:
        """See `Strategy.resume`."""
        try:
            match read_about(file):
                case {"steps": int(steps), "leaves": list(values), **place}:
                    if place != self._place():
                        return ()
                case _:
                    return ()
            leaves = tuple(map(Leaf.from_value, values))
            first = min(leaf.item for leaf in leaves)
            replica = self._begin(self._state.flat_weights, self._round, first)
            read_vectors(file, replica.vectors)
            replica.go_on(steps)
        except (Malformed, RuntimeError, MemoryError):
            self._forget()
            return ()
        self._leaves = {leaf.item: leaf for leaf in leaves}
        return leaves

    def _place(self) -> dict[str, Value]:
        """Where a claim is computed: on one device class alone, as its replay is."""
        device = device_class(self._state.stage.device)
        return {"round": self._round, "base": self._base, "device": device}

    def _leaf(
        self,
        item: Item,
        round: RoundNumber,
        tensors: tuple[tuple[str, Digest], ...],
        numbers: tuple[int, ...],
    ) -> Leaf:
        return Leaf(item=item, base_round=round, given=False, tensors=tensors, numbers=numbers)

    # --------------------------------------------------------------------------------- exchange

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        is_whole = self._under_way is None and [*self._leaves] == sorted(items)
        if not (items and is_whole):
            raise Refused("the weights are not of these items", items=sorted(self._leaves))
        leaves = tuple(self._leaves[item] for item in sorted(items))
        difference = self._rebased().difference()
        return Draft(leaves, self.recipe.shards(difference, self._base, min(items)))

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        recipe, codec, number = self.recipe, self.recipe.codec, bucket[1]
        vectors = (recipe.read_shard(data, number) for data in in_turn(shards, weights))
        mean = weighted_mean(vectors, [weight for _, weight in weights.values()])
        data = codec.mean(mean)
        return recipe.output(number, data, codec.read_mean(data, len(mean))), data

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> LocalState:
        """See `Strategy.apply`."""
        assert isinstance(state, LocalState)
        recipe, device, moments = self.recipe, state.flat_weights.device, state.moments
        if state.previous is not None:
            state.previous.copy_(state.flat_weights)
        rate, mu = recipe.local.outer_rate / MILLION, recipe.local.outer_momentum / MILLION
        config = recipe.config.optimizer
        for number, (start, end), bucket in zip(
            recipe.buckets, recipe.bounds, buckets, strict=True
        ):
            mean = recipe.codec.read_mean(bucket, end - start).to(device)
            first = start % recipe.num_parameters
            part = slice(first, first + end - start)
            vector = recipe.batch.vector_of(number)
            if moments is None or vector == 0:
                apply_outer(state.flat_weights[part], state.momentum[part], mean, rate=rate, mu=mu)
            elif vector == ROOTS:  # all first moments are there
                apply_root(moments.exp_avg[part], moments.exp_avg_sq[part], mean, config)
            else:
                moments.exp_avg[part] = mean
        state.updated(seal.next - count(seal.unsealed))
        return state

    # ----------------------------------------------------------------------------------- audits

    def need_weights(self, file: Path, group: Group, base: Digest) -> None:
        """See `Strategy.need_weights`."""
        self.recipe.load_base(file, base)

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """See `Strategy.replay`."""
        return await replay_claim(
            self.recipe,
            self.device,
            self._frozen,
            self.compute,
            claim,
            leaves,
            source,
            seed,
            comparison,
        )


def _broken_off(error: BaseException) -> Unavailable:
    return Unavailable(f"a segment broke off: {error}")
