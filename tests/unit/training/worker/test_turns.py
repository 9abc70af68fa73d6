"""Whose turn is it, and what happens to a turn whose owner is gone?"""

import asyncio

import pytest

from training.worker.turns import Rank, Turn


async def wait_for(turn: Turn, rank: Rank, done: list[str], name: str) -> None:
    await turn.acquire(rank)
    done.append(name)
    turn.release()


async def test_turn__several_wait__lower_ranks_first_then_in_order() -> None:
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.FORWARD)

    async with asyncio.TaskGroup() as group:
        for name, rank in (
            ("f1", Rank.FORWARD),
            ("b1", Rank.BACKWARD),
            ("f2", Rank.FORWARD),
            ("step", Rank.STEP),
            ("b2", Rank.BACKWARD),
        ):
            group.create_task(wait_for(turn, rank, done, name))
            await asyncio.sleep(0)
        turn.release()

    assert done == ["step", "b1", "b2", "f1", "f2"]


async def test_turn__one_who_waits_gives_up__the_next_gets_it() -> None:
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.STEP)
    impatient = asyncio.ensure_future(wait_for(turn, Rank.STEP, done, "impatient"))
    patient = asyncio.ensure_future(wait_for(turn, Rank.FORWARD, done, "patient"))
    await asyncio.sleep(0)

    impatient.cancel()
    turn.release()
    await patient

    assert done == ["patient"]


async def test_turn__given_to_one_who_is_cancelled_at_that_moment__is_passed_on() -> None:
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.STEP)
    gone = asyncio.ensure_future(wait_for(turn, Rank.STEP, done, "gone"))
    await asyncio.sleep(0)

    turn.release()  # it is `gone`'s now, who has not run since
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    async with asyncio.timeout(1):
        await wait_for(turn, Rank.FORWARD, done, "next")

    assert done == ["next"]
