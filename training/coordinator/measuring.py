"""How fast a newcomer is: the coordinator times one seeded reference item in the group it gets.

The first call lets the peer build its state, as long as that takes, and is not timed. Then the same
item is timed several times, fewer if it is long, and the least counts: whatever else runs on a
machine only makes a unit slower. Several peers may share a machine: one call is timed at a time,
they take turns, and they begin when nobody builds any more, but do not wait long for that. A rate
is in items per 1e6 seconds of the coordinator's clock, so nobody is faster than the clock can tell.
Source: docs/protocol.md 7, until the market's hardware challenge exists.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from contracts.terms.errors import DeadlineExceeded, Misbehaved, Overloaded, Refused, Unavailable
from contracts.terms.ids import JobId, PeerId
from training.strategies.port import Group
from training.transport import calls
from training.transport.port import Session
from training.transport.wire import ask

Nanoseconds = Callable[[], int]

BUILD = 120.0  # seconds, for the first call
TIMED = 30.0  # seconds: a peer that is slower than this is of no use to a step
CALM = 5.0  # seconds that others' building is waited for
TRIES = 5
ENOUGH = 0.3  # seconds of timed calls: a longer unit has its noise averaged out
MICRO = 10**6
_NANOSECONDS = 10**9


class Measuring:
    """Peers that are being measured, and their groups."""

    def __init__(self, job: JobId, stopwatch: Nanoseconds = time.perf_counter_ns) -> None:
        self._job, self._stopwatch = job, stopwatch
        self._alone = asyncio.Lock()
        self._coming: dict[PeerId, Group] = {}
        self._num_building, self._calm = 0, asyncio.Event()

    def groups(self) -> tuple[Group, ...]:
        """Where the peers that are being measured will go."""
        return tuple(self._coming.values())

    async def rate_of(self, peer: PeerId, session: Session, group: Group) -> int:
        """Items per 1e6 seconds of `peer` in `group`.

        Raises:
            Unavailable: it did not answer in time, is gone, said no, or is being measured already.
        """
        if peer in self._coming:  # else one peer that asks often would keep all others waiting
            raise Overloaded("this peer is being measured", peer=peer.hex())
        self._coming[peer] = group
        try:
            await self._build(session, group)
            took = await self._least(session, group)
        except DeadlineExceeded as error:
            raise Unavailable("the reference item was not done in time; join again") from error
        except (Refused, Misbehaved) as error:
            raise Unavailable(f"the reference item was not done: {error.message}") from error
        finally:
            del self._coming[peer]
        return max(1, MICRO * _NANOSECONDS // took)

    async def _build(self, session: Session, group: Group) -> None:
        self._calm.clear()
        self._num_building += 1
        try:
            await self._measure(session, group, BUILD)
        finally:
            self._num_building -= 1
            if not self._num_building:
                self._calm.set()

    async def _least(self, session: Session, group: Group) -> int:
        """Nanoseconds of the quickest of a few units."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALM):
                await self._calm.wait()
        took: list[int] = []
        while len(took) < TRIES and sum(took) < ENOUGH * _NANOSECONDS:
            async with self._alone:  # waiting calls of others come before our next one
                began = self._stopwatch()
                await self._measure(session, group, TIMED)
                took.append(max(1, self._stopwatch() - began))
        return min(took)

    async def _measure(self, session: Session, group: Group, deadline: float) -> None:
        request = calls.Measure(job=self._job, group=group, seed=group)
        await ask(session, calls.MEASURE, request, deadline=deadline)
