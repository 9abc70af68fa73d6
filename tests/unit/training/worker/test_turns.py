"""Whose turn is it, and what happens to a turn whose owner is gone?"""

import asyncio

import pytest

from tests.support.patience import patience
from training.worker.turns import PATIENCE, Rank, Turn


async def wait_for(turn: Turn, rank: Rank, done: list[str], name: str) -> None:
    await turn.acquire(rank)
    done.append(name)
    turn.release()


async def take_turns(*asked: tuple[str, Rank]) -> list[str]:
    """The order in which these get a turn that somebody else has while they ask."""
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.FORWARD)
    async with asyncio.TaskGroup() as group:
        for name, rank in asked:
            group.create_task(wait_for(turn, rank, done, name))
            await asyncio.sleep(0)
        turn.release()
    return done


async def test_turn__several_wait__lower_ranks_first_then_in_order() -> None:
    done = await take_turns(
        ("f1", Rank.FORWARD), ("b1", Rank.BACKWARD), ("f2", Rank.FORWARD), ("step", Rank.STEP),
        ("b2", Rank.BACKWARD),
    )  # fmt: skip

    assert done == ["step", "b1", "b2", "f1", "f2"]


async def test_turn__audits_wait__real_work_goes_before_but_not_without_end() -> None:
    passes = [(f"f{number}", Rank.FORWARD) for number in range(2 * PATIENCE + 1)]

    done = await take_turns(("a1", Rank.AUDIT), ("a2", Rank.AUDIT), *passes)

    assert done[PATIENCE] == "a1"
    assert done[2 * PATIENCE + 1] == "a2"
    assert done[-1] == f"f{2 * PATIENCE}"


async def test_turn__audit_is_due_and_the_swarm_waits__what_the_swarm_waits_for_goes_first() -> (
    None
):
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.BACKWARD)
    tasks = [asyncio.ensure_future(wait_for(turn, Rank.AUDIT, done, "audit"))]
    await asyncio.sleep(0)
    for _ in range(PATIENCE):  # one pass after the other: then it would be the audit's turn
        next_pass = asyncio.ensure_future(turn.acquire(Rank.BACKWARD))
        await asyncio.sleep(0)
        turn.release()
        await next_pass
    for name, rank in (("pass", Rank.BACKWARD), ("step", Rank.STEP)):
        tasks.append(asyncio.ensure_future(wait_for(turn, rank, done, name)))
        await asyncio.sleep(0)

    turn.release()
    await asyncio.gather(*tasks)

    assert done == ["step", "audit", "pass"]


async def test_turn__given_to_one_who_is_cancelled_at_that_moment__is_passed_on() -> None:
    turn, done = Turn(), list[str]()
    await turn.acquire(Rank.STEP)
    gone = asyncio.ensure_future(wait_for(turn, Rank.STEP, done, "gone"))
    await asyncio.sleep(0)

    turn.release()  # it is `gone`'s now, who has not run since
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    async with asyncio.timeout(patience(1)):
        await wait_for(turn, Rank.FORWARD, done, "next")

    assert done == ["next"]
