"""Work ahead of a round: what goes on in the next one, and what a replay makes of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from contracts.terms.errors import Refused, Unavailable
from contracts.terms.items import ItemNumber
from contracts.terms.messages import ShardCodecName
from contracts.terms.work import Leaf
from tests.numerics.test_local_moments import CODECS, SECOND, Job, Work, spec_under
from tests.support.fakes.memory_source import at_once
from training.strategies.local import strategy
from training.strategies.local.inner import Replica
from training.strategies.local.rules import GROUP
from training.strategies.port import RoundNumber

AHEAD, NEXT = ItemNumber(1), ItemNumber(3)
T = TypeVar("T")


def sealed_once(codec: ShardCodecName = "none") -> Job:
    """After round 1, of whose items the second one was the last to be computed."""
    torch.set_num_threads(1)
    job = Job(spec_under(codec, moments="restart", overlap=True, segments=2))
    job.seal(1)
    return job


def run(job: Job, item: ItemNumber) -> Leaf:
    leaf = asyncio.run(job.strategy.run(item, "whole", job.source))
    assert leaf is not None
    return leaf


def second_round(job: Job) -> Work:
    """Of who did one item ahead of it and one in it."""
    job.strategy.start(job.state, SECOND)
    ahead, leaf = job.strategy.leaves(), run(job, NEXT)
    replica = job.strategy._replica
    assert replica is not None
    return Work(job.state.roots().state, leaf, replica.difference(), ahead)


@pytest.mark.parametrize("codec", CODECS)
def test_start__after_the_update__work_ahead_goes_on_and_its_replay_matches(
    codec: ShardCodecName, tmp_path: Path
) -> None:
    job = sealed_once(codec)

    done = second_round(job)

    assert [(leaf.item, leaf.base_round) for leaf in done.ahead] == [(AHEAD, 1)]
    assert (done.leaf.item, done.leaf.base_round) == (NEXT, 2)
    assert job.verdict(done, tmp_path) == "match"


def test_replay__says_of_other_weights_than_it_was_computed_on__mismatch(tmp_path: Path) -> None:
    done = second_round(job := sealed_once())
    as_of_now = tuple(leaf.model_copy(update={"base_round": 2}) for leaf in done.ahead)
    as_of_before = done.leaf.model_copy(update={"base_round": 1})

    assert job.verdict(replace(done, ahead=as_of_now), tmp_path) == "mismatch"
    assert job.verdict(replace(done, leaf=as_of_before), tmp_path) == "mismatch"
    assert job.verdict(done, tmp_path) == "match"


def test_replay__what_the_update_brought_is_not_added__mismatch(tmp_path: Path) -> None:
    done, other = second_round(job := sealed_once()), sealed_once()
    assert other.state.previous is not None
    brought = other.state.flat_weights - other.state.previous

    assert job.verdict(replace(done, difference=done.difference + brought), tmp_path) == "mismatch"


@pytest.mark.parametrize("why", ["a void round", "begun again", "another state", "two rounds on"])
def test_start__not_of_the_update_that_replaced_its_weights__begins_anew(why: str) -> None:
    job, state = sealed_once(), None
    if why == "a void round":
        job.strategy.start(job.state, SECOND)
        job.strategy.start(job.state, SECOND)
        run(job, NEXT)
    elif why == "begun again":
        job.strategy.start(job.state, SECOND)
    elif why == "another state":
        state = sealed_once().strategy.first_state(GROUP)

    is_later = why in ("a void round", "two rounds on")
    job.strategy.start(state or job.state, RoundNumber(3 if is_later else 2))

    assert job.strategy.leaves() == ()


def test_evaluate__in_the_middle_of_a_round__is_of_the_sealed_weights_and_changes_nothing() -> None:
    job, other = sealed_once(), sealed_once()
    other.strategy.start(other.state, RoundNumber(9))

    first, again = (
        asyncio.run(each.strategy.run(ItemNumber(0), "evaluate", each.source))
        for each in (job, other)
    )

    assert first is not None and again is not None and first.numbers == again.numbers
    assert second_round(job).leaf == second_round(sealed_once()).leaf


def test_commit__an_item_is_half_done_ahead__refused_and_of_its_own_items_after_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "AT_ONCE", 0.0)
    job, wanted = sealed_once(), second_round(sealed_once())
    job.strategy.start(job.state, SECOND)
    run(job, NEXT)
    items, left = frozenset({AHEAD, NEXT}), 4  # turns: the beginning of an item, and three steps

    async def turn(function: Callable[[], T]) -> T:
        nonlocal left
        if not (left := left - 1):
            with pytest.raises(Refused):
                job.strategy.commit(items)
            job.strategy.start(job.state, SECOND)
        return function()

    job.strategy.compute = turn
    with pytest.raises(Unavailable):
        run(job, ItemNumber(5))
    job.strategy.compute = at_once
    job.strategy.start_ahead(frozenset({AHEAD}))
    run(job, AHEAD)
    run(job, NEXT)

    assert job.strategy.leaves() == (*wanted.ahead, wanted.leaf)
    shards = [data for _, data in job.strategy.commit(items).shards]
    recipe = job.strategy.recipe
    again = recipe.shards(wanted.difference, wanted.base, AHEAD)
    assert shards == [data for _, data in again]


def test_run__no_memory_as_it_begins__is_told_and_the_next_try_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, wanted = sealed_once(), second_round(sealed_once()).leaf
    for each in (job, other := sealed_once()):
        each.strategy.start(each.state, RoundNumber(9))
    with monkeypatch.context() as broken:
        broken.setattr(Replica, "start", _no_memory)
        with pytest.raises(Unavailable):
            run(job, NEXT)

    assert run(job, NEXT) == run(other, NEXT) != wanted


def _no_memory(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_keep__round_with_work_ahead__goes_on_where_it_was(tmp_path: Path) -> None:
    job = sealed_once()
    job.strategy.start(job.state, SECOND)
    ahead = job.strategy.leaves()
    job.strategy.keep(tmp_path / "round")
    wanted = run(job, NEXT)

    job.strategy.start(job.state, SECOND)

    assert job.strategy.resume(tmp_path / "round") == ahead
    assert run(job, NEXT) == wanted
