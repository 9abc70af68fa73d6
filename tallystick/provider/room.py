"""Does the disk have room for a lease? What is asked before one is accepted, and while it runs.

The bound of a lease's folder follows from the signed job (`training.disk`). Beside it `RESERVE`
stays free: journals, transactions, and what a peer writes to leave in order. Without it the agent
stands back: its peers leave, its offer is withdrawn. A lease that asked for more than there is
makes it stand back too, until there is as much, or `PAUSE` is over: other jobs ask for less.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from contracts.terms.errors import Refused

RESERVE = 256 * 2**20
PAUSE = 600.0  # seconds

Free = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write under a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder, some of which may go meanwhile."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except FileNotFoundError:
                continue
    return total


class Room:
    """Of one provider's home."""

    def __init__(
        self,
        home: Path,
        *,
        free: Free = free_bytes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home, self._free, self._monotonic = home, free, monotonic
        self._wanted, self._until = 0, 0.0

    def need(self, bound: int, *, held: int = 0) -> None:
        """Refuse a lease whose folder may take `bound` bytes, of which it holds `held` already.

        Raises:
            Refused: there is no room for it beside the reserve.
        """
        wanted = max(0, bound - held) + RESERVE
        free = self._free(self._home)
        if free < wanted:
            self._wanted, self._until = wanted, self._monotonic() + PAUSE
            raise Refused(
                f"{megabytes(free)} are free in {self._home}, the job may take {megabytes(bound)} "
                f"and {megabytes(RESERVE)} stay free beside it",
                wanted=wanted,
                free=free,
            )

    def lacks(self) -> str | None:
        """What it lacks to go on, for its owner; None: nothing."""
        free = self._free(self._home)
        if free < RESERVE:
            return (
                f"the disk is full: {megabytes(free)} are free in {self._home}, "
                f"{megabytes(RESERVE)} are needed"
            )
        if free < self._wanted and self._monotonic() < self._until:
            return (
                f"the disk has no room for the job that was matched: {megabytes(free)} are free "
                f"in {self._home}, {megabytes(self._wanted)} are needed"
            )
        return None


def megabytes(size: int) -> str:
    """A size, as people read it; rounded up."""
    return f"{-(-size // 2**20)} MB"
