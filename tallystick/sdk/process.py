"""What a job's processes share: log, metrics, an end on SIGTERM, and what the market knows.

Where the coordinator is now is for those who dial it (`Located`). The job's beacons as its market
says are for a coordinator, whose members check what it seals: they name no seals, so they are
nothing for a member (`MarketBeacons`).
"""

import asyncio
import atexit
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from contracts.terms.beacons import Beacon
from contracts.terms.errors import TallystickError, Unavailable
from contracts.terms.ids import JobId, StepNumber
from market.bodies.routes import GET_BEACONS, GET_JOB
from tallystick.sdk.client import MarketClient
from tallystick.watch.settings import WatchSettings
from training.hooks import hooks
from training.telling import JsonLines, Tell
from training.transport.port import Traffic

DONE, STOPPED, FAILED = 0, 143, 1
_ENDS_A_STEP = ("seal_stored", "seal_applied", "finished")


def teller(process: str, folder: Path) -> Tell:
    """JSON lines on standard output.

    With TALLYSTICK_METRICS the lines are counted too, and `metrics-PROCESS.json` in `folder` says
    where (`tallystick.watch.metrics`).
    """
    tell: Tell = JsonLines(sys.stdout, process=process)
    if WatchSettings().metrics:
        tell = _counted(tell, process, folder)
    return hooks().tell(tell, folder / f"failpoints-{process}")


def _counted(tell: Tell, process: str, folder: Path) -> Tell:
    # Imported when it is wanted: it is slow to import, and mostly off.
    from prometheus_client import CollectorRegistry

    from tallystick.watch.metrics import Exporter, Metrics

    registry = CollectorRegistry()
    exporter = Exporter(registry, folder / f"metrics-{process}.json", process=process)
    atexit.register(exporter.close)
    return Metrics(tell, registry)


def telling_traffic(tell: Tell, traffic: Traffic) -> Tell:
    """Tells the same; where a step ends it adds the bytes that have passed between peers so far."""

    def tell_with_traffic(event: str, **fields: object) -> None:
        if event in _ENDS_A_STEP:
            fields |= {"bytes_in": traffic.bytes_in, "bytes_out": traffic.bytes_out}
        tell(event, **fields)

    return tell_with_traffic


def run_process(
    main: Coroutine[None, None, None],
    tell: Tell,
    *,
    leave: asyncio.Event | None = None,
    leave_within: float = 0.0,
) -> int:
    """Run `main` to its end; SIGTERM and SIGINT cancel it.

    Args:
        main: The work.
        tell: Told of an error of ours that ended it.
        leave: Set by the first signal instead, so that `main` can end in order.
        leave_within: Seconds that it then has; after them, or at the next signal, it is cancelled.

    Returns:
        Exit status: 0 when the work is done, 143 when it was stopped, 1 when it failed.
    """

    async def supervised() -> int:
        task = asyncio.create_task(main)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if leave is None or leave.is_set():
                task.cancel()
            else:
                leave.set()
                loop.call_later(leave_within, task.cancel)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        with contextlib.suppress(asyncio.CancelledError):
            await task
            return DONE
        return STOPPED

    try:
        return asyncio.run(supervised())
    except TallystickError as error:
        tell("failed", code=error.code, error=str(error))
        return FAILED


# --------------------------------------------------------------------------------- from the market


@dataclass
class Located:
    """Asks the market before every dial; an unreachable market leaves the last known address."""

    client: MarketClient
    job: JobId
    last: str | None = field(default=None)

    async def __call__(self) -> str | None:
        """`host:port`, or None while nobody knows it."""
        with contextlib.suppress(Unavailable):
            self.last = (
                await self.client.call(GET_JOB, job=self.job)
            ).coordinator_address or self.last
        return self.last


ASK_EVERY = 1.0
"""Seconds between two questions to the market, while a beacon is missing."""


class MarketBeacons:
    """Satisfies `contracts.terms.beacons.Beacons`. One that counts is asked for once."""

    def __init__(
        self, client: MarketClient, job: JobId, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._job, self._monotonic = client, job, monotonic
        self._known: dict[StepNumber, Beacon] = {}
        self._asks_again_at = float("-inf")

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        if step not in self._known and self._monotonic() >= self._asks_again_at:
            self._asks_again_at = self._monotonic() + ASK_EVERY
            for each in (await self._client.call(GET_BEACONS, job=self._job, after=step - 1)).steps:
                if each.beacon is not None:
                    beacon = Beacon(each.step, each.root, each.block, each.beacon, seal=None)
                    self._known[each.step] = beacon
        return self._known.get(step)
