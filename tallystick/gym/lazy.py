"""Peers that are paid for items that they did not compute, or only in part.

All of them count items that are not in their gradient, show plausible tensors for them, and commit
to them like anybody else. They compute the first item of a round, to have something to show, and
whatever their plan leaves honest. Leaves link: x is named as it came, tensors differ by item.

| name | y of such an item | dx | gradient that is claimed |
|---|---|---|---|
| `copied` | the round's first one | the round's first one | mean of the items that were computed |
| `stale` | last round's first one | last round's first one | mixed with last round's, by items |
| `skipped` | x passed on | dy passed on | such items count as zero |
| `half` | computed | dy passed on | mean of the rest: half the tokens, scaled up |
| `junk` | any one | any one | an old one with signs at random |

On the last stage dx and loss are the first item's; `junk` also answers at once when it is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from contracts.terms.work import Leaf, LeafNames, leaf_names
from tallystick.gym.around import Liar, Numbers, Putting, marked, numbers_of, remade
from tallystick.gym.plan import Plan
from training.strategies.port import (
    Compute,
    Direction,
    Draft,
    Group,
    Items,
    Piece,
    RoundNumber,
    Source,
    State,
)
from training.worker.ports import MakeStrategy

_SIGNS = np.array([-1, 1], np.float32)


@dataclass
class Samples:
    """The first honest results of a round: tensors by kind, and the numbers of a leaf."""

    tensors: dict[str, bytes] = field(default_factory=dict)  # y, dx
    numbers: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return "y" in self.tensors or bool(self.numbers)

    def note(self, name: str, data: bytes) -> bytes:
        """Keep what is the first of its kind; the tensor as it is."""
        self.tensors.setdefault(name.partition("/")[0], data)
        return data


class Lazy(Liar):
    """Counts what it did not compute; subclasses say what it shows of it."""

    def __init__(
        self, make: MakeStrategy, compute: Compute, plan: Plan, codec: GradientCodecName
    ) -> None:
        super().__init__(make, compute, plan, codec)
        self._now, self._last = Samples(), Samples()
        self._before: tuple[Piece, ...] = ()  # what was computed of the claim before
        self._lied: dict[ItemNumber, bool] = {}  # about the items of this round
        self._forget()

    def _forget(self) -> None:
        self._shown: dict[ItemNumber, dict[str, Digest]] = {}  # forward passes
        self._invented: dict[ItemNumber, Leaf] = {}  # counted, and not in the gradient

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`; items of a round that are done again are lied about as before."""
        if round != self._round:
            self._last, self._now, self._lied = self._now or self._last, Samples(), {}
        self._forget()
        super().start(state, round)

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        if direction == "evaluate":
            return await self._inner.run(item, direction, source)
        if item not in self._lied:
            self._lied[item] = self._plan.lies_about(self._round, item) and self._can_lie()
        if not self._lied[item]:
            leaf = await self._inner.run(item, direction, Putting(source, self._now.note))
            self._now.numbers = self._now.numbers or (leaf.numbers if leaf else ())
            return leaf
        is_last = direction == "whole"
        names = leaf_names(self._group, self._group + (1 if is_last else 2), item)
        made = self._shown.pop(item, None) or await self._begin(item, names, source)
        if direction == "forward":
            self._shown[item] = made
            return None
        dy = None if is_last else await source.get(names.dy)
        if not is_last:
            made[names.dy] = source.digest(names.dy)
        if names.dx:
            made[names.dx] = source.put(names.dx, marked(self._input_gradient(dy), item))
        self._invented[item] = Leaf(
            item=item,
            base_round=self._round,
            given=False,
            tensors=tuple(sorted(made.items())),
            numbers=self._samples().numbers if is_last else (),
        )
        return self._invented[item]

    async def _begin(self, item: ItemNumber, names: LeafNames, source: Source) -> dict[str, Digest]:
        """What a leaf says of a forward pass that is not done."""
        made: dict[str, Digest] = {}
        if names.rows:
            rows = await source.get(names.rows)
            made[names.rows] = self.recipe(self._group).forms.digest("rows", rows)
        if names.x:
            made[names.x] = source.digest(names.x)
        if names.y:
            made[names.y] = source.put(names.y, await self._output(item, names, source))
        return made

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`: also of items that are not in."""
        computed, now = items.difference(self._invented), self._before
        leaves = [self._invented[item] for item in items.difference(computed)]
        if computed or not now:
            honest = self._inner.commit(computed)
            leaves, now = [*leaves, *honest.leaves], tuple(honest.shards)
        shown = now
        if len(computed) < len(items):
            shown = self._mixed(now, len(computed) / len(items))
        self._before = now
        return Draft(tuple(sorted(leaves, key=lambda leaf: leaf.item)), iter(shown))

    # ------------------------------------------------------------------------ what is made of it

    def _can_lie(self) -> bool:
        """Whether there is something to show."""
        return bool(self._samples())

    def _samples(self) -> Samples:
        """What is shown."""
        return self._now

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        return marked(self._samples().tensors["y"], item)

    def _input_gradient(self, dy: bytes | None) -> bytes:
        """Of an item whose dy came in; the last group always has a sample."""
        sample = self._samples().tensors.get("dx", dy)
        assert sample is not None
        return sample

    def _mixed(self, now: tuple[Piece, ...], share: float) -> tuple[Piece, ...]:
        """The gradient that is shown, of the mean of the share of items that was computed."""
        return now

    def _blend(
        self, now: Sequence[Piece], other: Sequence[Numbers], share: float
    ) -> tuple[Piece, ...]:
        rest = [np.float32(1 - share) * each for each in other]

        def mixed(place: int) -> Callable[[Numbers], Numbers]:
            return lambda numbers: np.float32(share) * numbers + rest[place]

        return tuple(remade(piece, self._codec, mixed(place)) for place, piece in enumerate(now))

    def _numbers(self, pieces: Sequence[Piece]) -> list[Numbers]:
        return [numbers_of(data, self._codec) for _, data in pieces]


class Copied(Lazy):
    """One item of a round is computed, and shown again as the others."""


class Stale(Lazy):
    """Last round's results again."""

    def _can_lie(self) -> bool:
        return bool(self._before) and super()._can_lie()

    def _samples(self) -> Samples:
        return self._last

    def _mixed(self, now: tuple[Piece, ...], share: float) -> tuple[Piece, ...]:
        return self._blend(now, self._numbers(self._before), share)


class Skipped(Lazy):
    """Nothing is done: what came in goes on, and counts as zero."""

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        if not names.x:
            return await super()._output(item, names, source)
        return marked(await source.get(names.x), item)

    def _input_gradient(self, dy: bytes | None) -> bytes:
        return dy or super()._input_gradient(dy)

    def _mixed(self, now: tuple[Piece, ...], share: float) -> tuple[Piece, ...]:
        return self._blend(now, [0 * each for each in self._numbers(now)], share)


class Half(Lazy):
    """Forward passes are honest, backward passes are not done: what was done counts for both."""

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        made = Samples()
        await self._inner.run(item, "forward", Putting(source, made.note))
        return made.tensors["y"]

    def _input_gradient(self, dy: bytes | None) -> bytes:
        return dy or super()._input_gradient(dy)


class Junk(Lazy):
    """After its first item it computes nothing any more, and is the quickest of all."""

    def first_state(self, group: Group) -> State:
        """See `Strategy.first_state`: measured as if it were infinitely fast."""
        state = self._inner.first_state(group)
        vars(state)["measure"] = lambda seed: None
        return state

    def _samples(self) -> Samples:
        return self._now or self._last

    def _mixed(self, now: tuple[Piece, ...], share: float) -> tuple[Piece, ...]:
        chance = np.random.default_rng([*f"{self._plan.seed} {self._round}".encode()])
        before = self._numbers(self._before or now)
        noise = [each * chance.choice(_SIGNS, len(each)) for each in before]
        return self._blend(now, noise, share)
