"""Are forged shards and means named as they are, and false in the rounds of the plan alone?"""

from functools import partial

import pytest

from contracts.terms.digest import digest
from contracts.terms.ids import ChunkIndex, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.plan import Plan
from tallystick.gym.registry import MAKERS
from tests.support.fakes.counting import CountingStrategy, rows_of
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import make_spec
from training.averaging.slices import slice_digest
from training.strategies.port import Piece, Shard, Strategy

RULES = make_spec().rules
TRUE, FALSE = StepNumber(1), StepNumber(2)
GROUP = StageIndex(0)


def liar(name: str, number: StepNumber) -> Strategy:
    """One that lies from the second round on, in this one."""
    behaviour = MAKERS[name](Plan(first=FALSE), RULES)
    strategy = behaviour.arithmetic(partial(CountingStrategy, make_spec()), at_once)
    strategy.start(strategy.first_state(GROUP), number)
    return strategy


async def shards(name: str, number: StepNumber) -> list[Piece]:
    """What is sent in a round."""
    strategy, items = liar(name, number), frozenset([ItemNumber(0)])
    await strategy.run(ItemNumber(0), "whole", MemorySource(rows_of))
    return list(strategy.commit(items).shards)


@pytest.mark.parametrize(
    "name", ["flipped", "turned", "scaled", "huge", "not_finite_parts", "oversized_parts"]
)
async def test_draft__lying_round__shards_are_false_and_named_as_they_are(name: str) -> None:
    honest = await shards("stamp", FALSE)

    sent = await shards(name, FALSE)

    assert await shards(name, TRUE) == await shards("stamp", TRUE)
    assert all(mine[1] != true[1] for mine, true in zip(sent, honest, strict=True))
    assert all(output.digest == slice_digest(data) for output, data in sent)


@pytest.mark.parametrize("name", ["wrong_sum", "left_out"])
async def test_reduce__lying_round__mean_is_false_and_no_longer(name: str) -> None:
    piece, *_ = await shards("stamp", TRUE)
    claims = [digest("claim", b"1"), digest("claim", b"2")]
    weights, bucket = {claim: (GROUP, 1) for claim in claims}, (GROUP, ChunkIndex(0))

    def reduced(number: StepNumber) -> Piece:
        given = (Shard(claim, piece[1]) for claim in claims)
        return liar(name, number).reduce(bucket, given, weights)

    assert reduced(TRUE)[1] == piece[1] != reduced(FALSE)[1]
    assert reduced(FALSE)[0].norm_squared <= piece[0].norm_squared
