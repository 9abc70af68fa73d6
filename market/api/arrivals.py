"""Agents and hosts wait here for work, so that none has to ask for it every second.

A lease wakes its offer's topic, a job that a host may open one topic for all hosts; one listener of
this process for each kind wakes who waits for it. A wake-up that was lost costs the rest of a wait,
as the rows are read again at its end. Nobody waits longer than `MAX_WAIT_SECONDS`, which is well
below the time after which an offer or a job's host counts as silent.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from contracts.terms.errors import Unavailable
from market.service.ports import Wakeup
from training.tasks import end

MAX_WAIT_SECONDS = 5
_DEAF_SECONDS = 1.0  # until Redis is asked again
log = logging.getLogger(__name__)


class Arrivals:
    """Who waits for which of the topics that begin with `prefix`."""

    def __init__(self, wakeup: Wakeup, prefix: str) -> None:
        self._wakeup, self._prefix = wakeup, prefix
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._ears: asyncio.Task[None] | None = None
        self._closed = False

    @contextmanager
    def of(self, topic: str) -> Iterator[asyncio.Event]:
        """Set once `topic` is woken, or when all have to go."""
        if self._ears is None and not self._closed:
            self._ears = asyncio.create_task(self._listen(), name=f"arrivals {self._prefix}")
        event = asyncio.Event()
        self._waiting.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[topic].discard(event)
            if not self._waiting[topic]:
                del self._waiting[topic]

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
        for events in self._waiting.values():
            for event in events:
                event.set()
        if self._ears is not None:
            await end([self._ears])

    async def _listen(self) -> None:
        while True:
            try:
                async for topic in self._wakeup.listen(self._prefix):
                    for event in self._waiting.get(topic, ()):
                        event.set()
            except Unavailable as error:
                log.warning("who waits for work waits for its time: %s", error.message)
            await asyncio.sleep(_DEAF_SECONDS)
