"""What does a lazy peer count, show and bind itself to, and what of it did it compute?"""

from fractions import Fraction
from typing import Any, cast

import pytest

from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.lazy import Copied, Half, Junk, Lazy, Skipped, Stale
from tallystick.gym.plan import Plan
from tests.support.fakes.counting import CountingStrategy, rows_of
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import make_spec
from training.strategies.port import Direction, Strategy

KINDS = [Copied, Stale, Skipped, Half, Junk]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


class Pipeline:
    """A lazy peer in one group, honest peers in the others."""

    def __init__(self, kind: type[Lazy], plan: Plan, *, group: int, groups: int) -> None:
        spec = make_spec(stages=groups)
        self.inner = [CountingStrategy(spec, at_once) for _ in range(groups)]
        self.lazy = kind(lambda compute: self.inner[group], at_once, plan, "none")
        self.group, self.number = group, 0
        self._states = [each.first_state(StageIndex(at)) for at, each in enumerate(self.inner)]

    @property
    def peers(self) -> list[Strategy]:
        """Group by group."""
        found: list[Any] = list(self.inner)
        found[self.group] = self.lazy
        return cast(list[Strategy], found)

    async def round(self, *items: int) -> Any:
        """The claim of the lazy peer of these items, which everybody takes through."""
        self.number += 1
        source, last = MemorySource(rows_of), len(self.inner) - 1
        for peer, state in zip(self.peers, self._states, strict=True):
            peer.start(state, StepNumber(self.number))
        ways: list[tuple[int, Direction]] = [(at, "forward") for at in range(last)]
        ways += [(last, "whole"), *((at, "backward") for at in reversed(range(last)))]
        for at, direction in ways:
            for item in items:
                await self.peers[at].run(ItemNumber(item), direction, source)
        draft = self.lazy.commit(frozenset(map(ItemNumber, items)))
        return draft, list(draft.shards)


@ALL_KINDS
@pytest.mark.parametrize(("group", "groups"), [(0, 1), (0, 3), (1, 3), (2, 3)])
async def test_lazy__second_round__claims_what_it_did_not_compute(
    kind: type[Lazy], group: int, groups: int
) -> None:
    pipeline = Pipeline(kind, Plan(first=1), group=group, groups=groups)
    await pipeline.round(0, 1, 2)

    draft, shards = await pipeline.round(3, 4, 5)

    assert [leaf.item for leaf in draft.leaves] == [3, 4, 5]
    assert len(pipeline.inner[group].items) < 3
    assert len(shards) == 2
    names = [tensor for leaf in draft.leaves for tensor in leaf.tensors]
    assert len({digest for _, digest in names}) == len(names), "every tensor differs"


async def test_lazy__share_of_its_items__computes_the_others() -> None:
    plan = Plan(seed=1, share=Fraction(1, 2))
    pipeline = Pipeline(Skipped, plan, group=0, groups=1)

    await pipeline.round(*range(20))

    lied = {item for item in range(1, 20) if plan.lies_about(StepNumber(1), ItemNumber(item))}
    assert set(pipeline.inner[0].items) == set(range(20)) - lied
    assert 4 < len(lied) < 16
