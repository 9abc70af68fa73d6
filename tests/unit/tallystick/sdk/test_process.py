"""What entry processes add to their log, and how signals end them."""

import asyncio
import os
import signal

from tallystick.sdk.process import DONE, STOPPED, run_process, telling_traffic
from training.telling import tell_nobody
from training.transport.port import Traffic


def test_telling_traffic__end_of_a_step__bytes_so_far_are_told() -> None:
    told: list[tuple[str, dict[str, object]]] = []
    traffic = Traffic()
    tell = telling_traffic(lambda event, **fields: told.append((event, fields)), traffic)

    tell("unit_done", unit=1)
    traffic.bytes_in, traffic.bytes_out = 30, 20
    tell("seal_applied", step=2)

    assert told == [
        ("unit_done", {"unit": 1}),
        ("seal_applied", {"step": 2, "bytes_in": 30, "bytes_out": 20}),
    ]


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_run_process__first_signal_with_leave__ends_in_order() -> None:
    leave = asyncio.Event()

    async def work() -> None:
        stop_myself()
        await leave.wait()

    assert run_process(work(), tell_nobody, leave=leave, leave_within=60.0) == DONE


def test_run_process__second_signal__is_stopped() -> None:
    leave = asyncio.Event()

    async def work() -> None:
        stop_myself()
        await leave.wait()
        stop_myself()
        await asyncio.Event().wait()

    assert run_process(work(), tell_nobody, leave=leave, leave_within=60.0) == STOPPED


def test_run_process__does_not_leave_in_time__is_stopped() -> None:
    async def work() -> None:
        stop_myself()
        await asyncio.Event().wait()

    assert run_process(work(), tell_nobody, leave=asyncio.Event(), leave_within=0.001) == STOPPED


def test_run_process__signal_without_leave__is_stopped() -> None:
    async def work() -> None:
        stop_myself()
        await asyncio.Event().wait()

    assert run_process(work(), tell_nobody) == STOPPED
