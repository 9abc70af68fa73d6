"""How fast a newcomer is: the coordinator times one seeded reference unit in the stage it gets.

The first call lets the peer build the stage, as long as that takes; the second one is timed. One
peer is timed at a time, since several may share a machine. A rate is in units per 1e6 seconds of
the coordinator's clock, so nobody is faster than the clock can tell. Source: PROTOCOL section 7,
until the market's hardware challenge exists.
"""

import asyncio
import time
from collections.abc import Callable

from contracts.terms.errors import DeadlineExceeded, Unavailable
from contracts.terms.ids import JobId, PeerId, StageIndex
from training.transport import calls
from training.transport.port import Session
from training.transport.wire import ask

Nanoseconds = Callable[[], int]

BUILD = 120.0  # seconds, for the first call
TIMED = 30.0  # seconds: a peer that is slower than this is of no use to a step
MICRO = 10**6
_NANOSECONDS = 10**9


class Measuring:
    """Peers that are being measured, and their stages."""

    def __init__(self, job: JobId, stopwatch: Nanoseconds = time.perf_counter_ns) -> None:
        self._job, self._stopwatch = job, stopwatch
        self._alone = asyncio.Lock()
        self._coming: dict[PeerId, StageIndex] = {}

    def stages(self) -> tuple[StageIndex, ...]:
        """Where the peers that are being measured will go."""
        return tuple(self._coming.values())

    async def rate_of(self, peer: PeerId, session: Session, stage: StageIndex) -> int:
        """Units per 1e6 seconds of `peer` in `stage`.

        Raises:
            Unavailable: it did not answer in time, or is gone.
            Refused: it said no.
        """
        self._coming[peer] = stage
        try:
            await self._measure(session, stage, BUILD)
            async with self._alone:
                began = self._stopwatch()
                await self._measure(session, stage, TIMED)
                took = max(1, self._stopwatch() - began)
        except DeadlineExceeded as error:
            raise Unavailable("the reference unit was not done in time; join again") from error
        finally:
            del self._coming[peer]
        return max(1, MICRO * _NANOSECONDS // took)

    async def _measure(self, session: Session, stage: StageIndex, deadline: float) -> None:
        request = calls.Measure(job=self._job, stage=stage, seed=stage)
        await ask(session, calls.MEASURE, request, deadline=deadline)
