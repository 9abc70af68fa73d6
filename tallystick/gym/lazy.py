"""Peers that are paid for items that they did not compute, or only in part.

All of them count items that are not in their gradient, show plausible tensors for them, and commit
to them like anybody else. They compute the first unit of a step, to have something to show, and
whatever their plan leaves honest. Leaves link: x is named as it came, tensors differ by unit.

| name | y of such an item | dx | gradient that is claimed |
|---|---|---|---|
| `copied` | the round's first one | the round's first one | mean of the items that were computed |
| `stale` | last round's first one | last round's first one | mixed with last round's, by items |
| `skipped` | x passed on | dy passed on | such items count as zero |
| `half` | computed | dy passed on | mean of the rest: half the tokens, scaled up |
| `junk` | any one | any one | an old one with signs at random |

On the last stage dx and loss are the first item's; `junk` also answers at once when it is measured.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.terms.items import ItemNumber
from contracts.terms.work import Leaf, LeafNames, leaf_names
from tallystick.gym.around import Around, Putting, marked, mean_of, shuffled
from tallystick.gym.plan import Plan
from training.strategies.port import (
    Direction,
    Draft,
    Group,
    Items,
    Piece,
    RoundNumber,
    Source,
    State,
    Strategy,
)


@dataclass
class Samples:
    """The first honest results of a round: tensors by kind, and the numbers of a leaf."""

    tensors: dict[str, bytes] = field(default_factory=dict)  # y, dx
    numbers: tuple[int, ...] = ()

    def note(self, name: str, data: bytes) -> bytes:
        """Keep what is the first of its kind; the tensor as it is."""
        self.tensors.setdefault(name.partition("/")[0], data)
        return data


class Lazy(Around):
    """Counts what it did not compute; subclasses say what it shows of it."""

    def __init__(self, inner: Strategy, plan: Plan, element_bytes: int) -> None:
        super().__init__(inner)
        self._plan, self._element_bytes = plan, element_bytes
        self._group = Group(0)
        self._now, self._last = Samples(), Samples()
        self._before: tuple[Piece, ...] = ()  # the gradient that was claimed last
        self._forget_items()

    def _forget_items(self) -> None:
        self._computed: set[ItemNumber] = set()
        self._shown: dict[ItemNumber, dict[str, Any]] = {}  # named forward, backward is to come
        self._invented: dict[ItemNumber, Leaf] = {}  # counted, and not in the gradient

    # ------------------------------------------------------------------------ what others ask for

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        self._group = state.group
        if round != self._round:
            self._turn()
        self._forget_items()
        super().start(state, round)

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        is_shown = direction == "backward" and item in self._shown
        is_begun = direction == "backward" and item in self._computed
        if direction == "evaluate" or not (is_shown or (self._lies(item) and not is_begun)):
            return await self._honest(item, direction, source)
        names = leaf_names(self._group, self._group + (1 if direction == "whole" else 2), item)
        made = self._shown.pop(item, None) or await self._begin(item, names, source)
        if direction == "forward":
            self._shown[item] = made
            return None
        if names.dy:
            made[names.dy] = source.digest(names.dy)
        if names.dx:
            dy = await source.get(names.dy) if names.dy else None
            made[names.dx] = source.put(names.dx, self._input_gradient(item, dy))
        numbers = self._samples().numbers if direction == "whole" else ()
        leaf = Leaf(
            item=item, base_round=self._round, given=False,
            tensors=tuple(sorted(made.items())), numbers=numbers,
        )  # fmt: skip
        self._invented[item] = leaf
        return leaf

    async def _honest(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        if direction == "evaluate":
            return await self._inner.run(item, direction, source)
        noting: Any = Putting(source, self._now.note)
        self._computed.add(item)
        leaf = await self._inner.run(item, direction, noting)
        if leaf is not None and not self._now.numbers:
            self._now.numbers = leaf.numbers
        return leaf

    async def _begin(self, item: ItemNumber, names: LeafNames, source: Source) -> dict[str, Any]:
        """What a leaf says of a forward pass that is not done."""
        made: dict[str, Any] = {}
        if names.rows:
            made[names.rows] = self.recipe(self._group).rows_digest(await source.get(names.rows))
        if names.x:
            made[names.x] = source.digest(names.x)
        if names.y:
            made[names.y] = source.put(names.y, await self._output(item, names, source))
        return made

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`: also of items that are not in."""
        computed = items.difference(self._invented)
        if computed:
            honest = self._inner.commit(computed)
            now, leaves = tuple(honest.shards), honest.leaves
        else:
            now, leaves = self._before, ()
        invented = [leaf for item, leaf in self._invented.items() if item in items]
        shards = self._mixed(now, len(computed), len(invented)) if invented else now
        self._before = now
        ordered = sorted([*leaves, *invented], key=lambda leaf: leaf.item)
        return Draft(tuple(ordered), iter(shards))

    # ------------------------------------------------------------------------ what is made of it

    def _turn(self) -> None:
        """A round begins."""
        self._last = self._now if self._has(self._now) else self._last
        self._now = Samples()

    def _lies(self, item: ItemNumber) -> bool:
        return self._plan.lies_about(self._round, item) and self._can_lie()

    def _can_lie(self) -> bool:
        """Whether there is something to show."""
        return self._has(self._samples())

    @staticmethod
    def _has(samples: Samples) -> bool:
        return "y" in samples.tensors or bool(samples.numbers)

    def _samples(self) -> Samples:
        """What is shown."""
        return self._now

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        return marked(self._samples().tensors["y"], item)

    def _input_gradient(self, item: ItemNumber, dy: bytes | None) -> bytes:
        sample = self._samples().tensors.get("dx")
        if sample is not None:
            return marked(sample, item)
        assert dy is not None  # the last group has a sample of each kind
        return marked(dy, item)

    def _mixed(self, now: Sequence[Piece], num_computed: int, num_invented: int) -> Sequence[Piece]:
        """The gradient that is shown, of the mean of what was computed."""
        return now

    def _blend(
        self, now: Sequence[Piece], other: Sequence[bytes], weights: tuple[int, int]
    ) -> tuple[Piece, ...]:
        shown = []
        for (output, data), more in zip(now, other, strict=True):
            parts = [part for part in zip((data, more), weights, strict=True) if part[1]]
            shown.append(mean_of(self._inner, output.bucket, *parts))
        return tuple(shown)


class Copied(Lazy):
    """One item of a round is computed, and shown again as the others."""


class Stale(Lazy):
    """Last round's results again."""

    def _can_lie(self) -> bool:
        return bool(self._before) and super()._can_lie()

    def _samples(self) -> Samples:
        return self._last

    def _mixed(self, now: Sequence[Piece], num_computed: int, num_invented: int) -> Sequence[Piece]:
        before = [data for _, data in self._before]
        return self._blend(now, before, (num_computed, num_invented))


class Skipped(Lazy):
    """Nothing is done: what came in goes on, and counts as zero."""

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        if not names.x:
            return await super()._output(item, names, source)
        return marked(await source.get(names.x), item)

    def _input_gradient(self, item: ItemNumber, dy: bytes | None) -> bytes:
        return super()._input_gradient(item, None) if dy is None else marked(dy, item)

    def _mixed(self, now: Sequence[Piece], num_computed: int, num_invented: int) -> Sequence[Piece]:
        nothing = [bytes(len(data)) for _, data in now]
        return self._blend(now, nothing, (num_computed, num_invented))


class Half(Lazy):
    """Forward passes are honest, backward passes are not done: what was done counts for both."""

    async def _output(self, item: ItemNumber, names: LeafNames, source: Source) -> bytes:
        made: list[bytes] = []

        def note(name: str, data: bytes) -> bytes:
            made.append(data)
            return data

        noting: Any = Putting(source, note)
        await self._inner.run(item, "forward", noting)
        return made[0]

    def _input_gradient(self, item: ItemNumber, dy: bytes | None) -> bytes:
        return super()._input_gradient(item, None) if dy is None else marked(dy, item)


class Junk(Lazy):
    """After its first round it computes nothing any more, and is the quickest of all."""

    def first_state(self, group: Group) -> State:
        """See `Strategy.first_state`: measured as if it were infinitely fast."""
        state: Any = self._inner.first_state(group)
        state.measure = lambda seed: None
        return state  # type: ignore[no-any-return]

    def _can_lie(self) -> bool:
        return bool(self._before) and super()._can_lie()

    def _samples(self) -> Samples:
        return self._now if self._has(self._now) else self._last

    def _mixed(self, now: Sequence[Piece], num_computed: int, num_invented: int) -> Sequence[Piece]:
        chance = random.Random(f"{self._plan.seed} {self._round}")
        noise = [shuffled(data, self._element_bytes, chance) for _, data in self._before]
        return self._blend(now, noise, (num_computed, num_invented))
