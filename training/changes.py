"""Waiting for a state to change, without polling: a version that only rises."""

import asyncio


class Changes:
    """Counts changes; whoever has seen version n can wait for a later one. One event loop."""

    def __init__(self) -> None:
        self.version = 1  # 0 is what somebody has seen who has seen nothing
        self._next = asyncio.Event()

    def mark(self) -> None:
        """Something has changed."""
        self.version += 1
        reached, self._next = self._next, asyncio.Event()
        reached.set()

    async def beyond(self, version: int) -> None:
        """Wait until there is a later version."""
        while self.version <= version:
            await self._next.wait()
