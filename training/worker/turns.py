"""Whose turn it is to compute: one at a time, by rank, first come first served within a rank.

What the whole swarm waits for goes first (commit, average, seal), then backward passes, which free
memory here and let the stages below go on, then forward passes (SWARM, Ryabinin et al. 2023).
Invariant: a turn that was given to somebody who is gone is passed on at once.
"""

import asyncio
from enum import IntEnum
from heapq import heappop, heappush


class Rank(IntEnum):
    """Lower goes first."""

    STEP = 0
    BACKWARD = 1
    FORWARD = 2


class Turn:
    """A lock with ranks, for one event loop."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[Rank, int, asyncio.Future[None]]] = []
        self._asked = 0

    @property
    def waiting(self) -> int:
        """How many wait for it."""
        return sum(not given.done() for _, _, given in self._waiting)

    async def acquire(self, rank: Rank) -> None:
        """Wait for the turn; whoever has it calls `release`."""
        if not self._taken:
            self._taken = True
            return
        self._asked += 1
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (rank, self._asked, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.release()  # it was ours already
            raise

    def release(self) -> None:
        """Give it to the next."""
        while self._waiting:
            _, _, given = heappop(self._waiting)
            if not given.done():  # a cancelled wait leaves its future behind, cancelled
                given.set_result(None)
                return
        self._taken = False
