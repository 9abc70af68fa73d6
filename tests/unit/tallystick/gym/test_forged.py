"""Are forged shards and means named as they are, and false in the rounds of the plan alone?"""

import pytest

from contracts.terms.digest import digest
from contracts.terms.ids import ChunkIndex, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.plan import Plan
from tallystick.gym.registry import MAKERS
from tests.support.fakes.counting import CountingStrategy
from tests.support.history import make_spec
from tests.unit.tallystick.gym.test_lazy import Rows, at_once
from training.averaging.slices import slice_digest
from training.strategies.port import Piece, Shard
from training.worker.ports import Behaviour

RULES = make_spec().rules
TRUE, FALSE = StepNumber(1), StepNumber(2)
GROUP = StageIndex(0)


def behaviour(name: str) -> Behaviour:
    """One that lies from the second round on."""
    return MAKERS[name](Plan(first=FALSE), RULES)


async def shards(name: str, number: StepNumber) -> tuple[list[Piece], list[Piece]]:
    """What is sent in a round, and what an honest peer sends."""
    strategy, items = CountingStrategy(make_spec(), at_once), frozenset([ItemNumber(0)])
    strategy.start(strategy.first_state(GROUP), number)
    await strategy.run(ItemNumber(0), "whole", Rows())
    sent = behaviour(name).draft(strategy, number, items)
    return list(sent.shards), list(strategy.commit(items).shards)


@pytest.mark.parametrize(
    "name", ["flipped", "turned", "scaled", "huge", "not_finite_parts", "oversized_parts"]
)
async def test_draft__lying_round__shards_are_false_and_named_as_they_are(name: str) -> None:
    sent, honest = await shards(name, TRUE)
    assert sent == honest

    sent, honest = await shards(name, FALSE)

    assert all(mine[1] != true[1] for mine, true in zip(sent, honest, strict=True))
    assert all(output.digest == slice_digest(data) for output, data in sent)


@pytest.mark.parametrize("name", ["wrong_sum", "left_out"])
async def test_reduce__lying_round__mean_is_false_and_no_longer(name: str) -> None:
    strategy, (piece, *_) = CountingStrategy(make_spec(), at_once), (await shards("stamp", TRUE))[0]
    claims = [digest("claim", b"1"), digest("claim", b"2")]
    weights, bucket = {claim: (GROUP, 1) for claim in claims}, (GROUP, ChunkIndex(0))

    def reduced(number: StepNumber) -> Piece:
        given = (Shard(claim, piece[1]) for claim in claims)
        return behaviour(name).reduce(strategy, number, bucket, given, weights)

    assert reduced(TRUE)[1] == piece[1] != reduced(FALSE)[1]
    assert reduced(FALSE)[0].norm_squared <= piece[0].norm_squared
