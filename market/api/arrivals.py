"""Agents, hosts and readers of events wait here for news, so that none has to ask every second.

A lease wakes its offer's topic, a job that a host may open one topic for all hosts, an event that
of its feed; one listener of this process hears them all and wakes who waits. A wake-up that was
lost costs the rest of a wait, as the rows are read again at its end. Nobody waits longer for work
than `MAX_WAIT_SECONDS`, which is well below the time after which an offer or a job's host counts as
silent.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from contracts.terms.errors import Unavailable
from market.service.ports import Wakeup
from training.tasks import end

MAX_WAIT_SECONDS = 5
DEAF_SECONDS = 1.0
"""Pause until Redis is asked again."""
log = logging.getLogger(__name__)


class Arrivals:
    """Who waits for which topic."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._ears: asyncio.Task[None] | None = None
        self.hears: bool | None = None  # whether wake-ups come; None: nobody has waited yet
        self._closed = False

    @contextmanager
    def of(self, topic: str) -> Iterator[asyncio.Event]:
        """Set once `topic` is woken, or when all have to go."""
        if self._ears is None and not self._closed:
            self._ears = asyncio.create_task(self._listen(), name="arrivals")
            self.hears = False
        event = asyncio.Event()
        self._waiting.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[topic].discard(event)
            if not self._waiting[topic]:
                del self._waiting[topic]

    def wake(self, topic: str) -> None:
        """Let all go who wait for `topic`; for an empty one all."""
        waiting = [self._waiting.get(topic, ())] if topic else self._waiting.values()
        for events in waiting:
            for event in events:
                event.set()

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for it so long; not at all once the market goes down."""
        if not self._closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        event.clear()

    async def close(self) -> None:
        """Let all go."""
        self._closed = True
        self.wake("")
        if self._ears is not None:
            await end([self._ears])

    async def _listen(self) -> None:
        while True:
            try:
                async for topic in self._wakeup.listen():
                    self.hears = True
                    if topic:  # else the listening has begun
                        self.wake(topic)
            except Unavailable as error:
                log.warning("who waits for news waits for its time: %s", error.message)
            if self.hears:  # something may have been missed
                self.wake("")
            self.hears = False
            await asyncio.sleep(DEAF_SECONDS)
