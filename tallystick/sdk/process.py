"""What the entry processes of a job share: a log on standard output, and a clean end on SIGTERM."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

from contracts.terms.errors import TallystickError
from training.telling import FailpointFile, JsonLines, Tell

DONE, STOPPED, FAILED = 0, 143, 1


def teller(process: str, folder: Path) -> Tell:
    """JSON lines on standard output, with the failpoints that a chaos test left in `folder`."""
    return FailpointFile(JsonLines(sys.stdout, process=process), folder / f"failpoints-{process}")


def run_process(main: Coroutine[None, None, None], tell: Tell) -> int:
    """Run `main` to its end; SIGTERM and SIGINT cancel it.

    Returns:
        Exit status: 0 when the work is done, 143 when it was stopped, 1 when it failed.
    """

    async def supervised() -> int:
        task = asyncio.create_task(main)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
            return DONE
        return STOPPED

    try:
        return asyncio.run(supervised())
    except TallystickError as error:
        tell("failed", code=error.code, error=str(error))
        return FAILED
