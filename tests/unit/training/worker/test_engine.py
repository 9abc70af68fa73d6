"""What is done beside the computing: the event loop is heard meanwhile."""

import asyncio
import threading

import pytest

from contracts.terms.errors import Unavailable
from training.worker.engine import Engine


async def test_engine__beside__neither_the_loop_nor_the_compute_waits_for_it() -> None:
    engine, free = Engine(), threading.Event()
    begun = threading.Event()

    def write() -> bool:
        begun.set()
        return free.wait(10)

    async def write_beside() -> bool:
        return await engine.run_io(write)

    writing = asyncio.create_task(write_beside())
    computed = await engine.run(lambda: begun.wait(10))
    free.set()

    assert (computed, await writing) == (True, True)
    await engine.close()


async def test_engine__closed__nothing_begins_any_more() -> None:
    engine = Engine()
    await engine.close()

    for begin in (engine.run, engine.run_io):
        with pytest.raises(Unavailable, match="stopping"):
            await begin(lambda: None)
