"""Does time pass in a simulated loop only where somebody waits?"""

import asyncio
import threading
import time

import pytest

from tests.support.simulated_time import loop_clock, loop_seconds

DAY = 86_400.0


@pytest.mark.simulated_time
async def test_simulated_loop__a_day_is_waited_for__is_over_at_once() -> None:
    began, really = loop_seconds(), time.monotonic()
    clock = loop_clock()

    await asyncio.sleep(DAY)

    assert loop_seconds() - began == pytest.approx(DAY)
    assert loop_clock() - clock == pytest.approx(1000 * DAY, abs=1)
    assert time.monotonic() - really < DAY


@pytest.mark.simulated_time
async def test_simulated_loop__the_loop_computes__takes_no_time() -> None:
    began = loop_seconds()

    sum(range(10_000))
    await asyncio.sleep(0)

    assert loop_seconds() == began


@pytest.mark.simulated_time
async def test_simulated_loop__a_thread_computes__no_deadline_passes_meanwhile() -> None:
    may_end = threading.Event()
    began = loop_seconds()

    async with asyncio.timeout(1e-6):
        computing = asyncio.ensure_future(asyncio.to_thread(may_end.wait))
        await asyncio.sleep(0)
        threading.Timer(0.001, may_end.set).start()
        await computing

    assert loop_seconds() == began


@pytest.mark.simulated_time
async def test_simulated_loop__a_thread_is_given_up__its_end_is_waited_for_first() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def compute() -> None:
        may_end.wait()
        ended.set()

    computing = asyncio.ensure_future(asyncio.to_thread(compute))
    await asyncio.sleep(0)
    computing.cancel()
    threading.Timer(0.001, may_end.set).start()
    await asyncio.sleep(DAY)

    assert ended.is_set()


@pytest.mark.simulated_time
async def test_simulated_loop__nobody_answers__a_deadline_passes() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DAY):
            await asyncio.Event().wait()
