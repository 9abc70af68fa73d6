"""Strategies by name; the fake one, which swarm tests use."""

import pytest

from contracts.terms.errors import Refused
from contracts.terms.ids import StageIndex
from contracts.terms.items import ItemNumber
from tests.support.fakes.counting import CountingStrategy, rows_of
from tests.support.fakes.memory_source import MemorySource, at_once, ended, make_seal
from tests.support.history import MODEL, make_spec
from tests.support.plain_swarm import plain_run
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import RoundNumber, Strategy
from training.strategies.registry import rules_of

SPEC = make_spec(
    model=MODEL.model_copy(update={"num_layers": 3}),
    stages=3,
    item_flops=(1, 3, 2),
    layer_ends=(1, 2, 3),
    steps=2,
    units_per_step=4,
)


def test_rules_of__name_of_a_job__the_rules_that_it_signs() -> None:
    assert isinstance(rules_of(SPEC), EveryStep)


def test_counting__stages_by_hand__come_to_the_plain_run() -> None:
    source, strategies = MemorySource(rows_of), list[Strategy]()
    states = []
    for stage in map(StageIndex, range(3)):
        strategy: Strategy = CountingStrategy(SPEC, at_once)
        strategies.append(strategy)
        states.append(strategy.first_state(stage))

    for step in (1, 2):
        items = [ItemNumber(item) for item in range(4 * step - 4, 4 * step)]
        for strategy, state in zip(strategies, states, strict=True):
            strategy.start(state, RoundNumber(step))
        for item in reversed(items):
            for direction, number in (
                ("forward", 0),
                ("forward", 1),
                ("whole", 2),
                ("backward", 1),
                ("backward", 0),
            ):
                ended(strategies[number].run(item, direction, source))  # type: ignore[arg-type]
        for strategy, state in zip(strategies, states, strict=True):
            shards = [data for _, data in strategy.commit(frozenset(items)).shards]
            strategy.apply(state, iter(shards), make_seal(step, norm=1))

    assert [state.roots().state for state in states] == plain_run(SPEC).states
    with pytest.raises(Refused):
        strategies[0].commit(frozenset({ItemNumber(0)}))
