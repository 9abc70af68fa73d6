"""Whose turn it is to compute: one at a time, by rank, first come first served within a rank.

What the whole swarm waits for goes first (claim, reduce, seal), then backward passes, which free
memory here and let the stages below go on, then forward passes (SWARM, Ryabinin et al. 2023), then
audits, for which a deadline of several steps holds, and work ahead of its round.
Invariants: a turn that was given to somebody who is gone is passed on at once; while tasks keep
the queue full an audit waits for at most `PATIENCE` passes, and for what the whole swarm waits for.
"""

import asyncio
from enum import IntEnum
from heapq import heappop, heappush


class Rank(IntEnum):
    """Lower goes first."""

    STEP = 0
    BACKWARD = 1
    FORWARD = 2
    AUDIT = 3


PATIENCE = 4
"""Two units of a middle stage: replays of half of the work keep up with it (README, decision 2)."""

_Waiting = tuple[Rank, int, "asyncio.Future[None]"]


class Turn:
    """A lock with ranks, for one event loop."""

    def __init__(self) -> None:
        self._taken = False
        self._work: list[_Waiting] = []
        self._audits: list[_Waiting] = []
        self._asked = 0
        self._passes = 0  # that went before a waiting audit

    @property
    def waiting(self) -> int:
        """How many wait for it."""
        return sum(not given.done() for _, _, given in (*self._work, *self._audits))

    async def acquire(self, rank: Rank) -> None:
        """Wait for the turn; whoever has it calls `release`."""
        if not self._taken:
            self._taken = True
            return
        self._asked += 1
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._audits if rank == Rank.AUDIT else self._work, (rank, self._asked, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.release()  # it was ours already
            raise

    def release(self) -> None:
        """Give it to the next."""
        rank, audit = _first_rank(self._work), _first_rank(self._audits)
        if audit is not None and (rank is None or (rank != Rank.STEP and self._passes >= PATIENCE)):
            self._passes = 0
            _give(self._audits)
        elif rank is not None:
            self._passes = 0 if audit is None else self._passes + (rank != Rank.STEP)
            _give(self._work)
        else:
            self._taken = False


def _first_rank(waiting: list[_Waiting]) -> Rank | None:
    while waiting and waiting[0][2].done():  # a cancelled wait leaves its future behind, cancelled
        heappop(waiting)
    return waiting[0][0] if waiting else None


def _give(waiting: list[_Waiting]) -> None:
    heappop(waiting)[2].set_result(None)
