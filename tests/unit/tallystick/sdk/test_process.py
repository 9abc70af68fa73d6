"""What entry processes add to their log, and how signals end them."""

import asyncio
import os
import signal

import pytest

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


@pytest.mark.parametrize(
    ("leave", "seconds", "signals"),
    [(True, 60.0, 2), (True, 0.001, 1), (False, 0.0, 1)],
    ids=["second signal", "does not leave in time", "is not asked to leave"],
)
def test_run_process__signalled_and_stays__is_stopped(
    leave: bool, seconds: float, signals: int
) -> None:
    asked = asyncio.Event() if leave else None

    async def work() -> None:
        stop_myself()
        if signals == 2 and asked is not None:
            await asked.wait()
            stop_myself()
        await asyncio.Event().wait()

    assert run_process(work(), tell_nobody, leave=asked, leave_within=seconds) == STOPPED
