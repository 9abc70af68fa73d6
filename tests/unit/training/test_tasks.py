"""Does a task end that is cancelled, whatever it is doing at that moment?"""

import asyncio
from contextlib import suppress

import pytest

from contracts.terms.errors import Unavailable
from tests.support.patience import patience
from training import tasks
from training.tasks import end, first_error


async def fails_as_it_is_cancelled(gone: asyncio.Event) -> None:
    """What a call does whose session ends: an error, in the turn in which its caller has to go."""
    await gone.wait()
    raise Unavailable("the session has ended")


async def in_a_group(gone: asyncio.Event) -> None:
    with first_error():
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_as_it_is_cancelled(gone))
            group.create_task(asyncio.Event().wait())


async def goes_on(gone: asyncio.Event) -> None:
    while True:
        with suppress(Unavailable):
            await in_a_group(gone)
        gone.clear()


async def test_end__something_fails_in_the_same_turn__has_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "AGAIN", 0.001)
    gone = asyncio.Event()
    task = asyncio.create_task(goes_on(gone))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.set()
    await asyncio.sleep(0)

    await asyncio.wait_for(end([task]), patience(1))

    assert task.cancelled()


async def test_end__one_has_ended_and_one_fails__raises_nothing() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Unavailable("on its way out")

    over, failing = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fails())
    await over
    await asyncio.sleep(0)

    await end([over, failing])

    assert isinstance(failing.exception(), Unavailable)
