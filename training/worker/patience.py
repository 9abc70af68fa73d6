"""Whom an auditor asks for data, in which order, and whom it leaves alone: a liar gains by delay.

A report has a deadline, so who is audited, or a friend next door, may take every call, say nothing
and outlast all auditors. Hence whose work is audited is asked last, when nobody else has what is
wanted; and who took `MOST_WASTED` for nothing is left alone in all audits for a while. What others
lack then is for the coordinator to find, while no deadline passes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from contracts.terms.errors import TallystickError
from contracts.terms.ids import PeerId

MOST_WASTED = 5.0  # seconds that a call may take which gives nothing
LEFT_ALONE = 300.0  # seconds; what is asked for meanwhile is the coordinator's to find


class Patience:
    """Of one auditor; a new one has it with everybody."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[PeerId, float] = {}  # since when
        self.doer: PeerId | None = None  # whose work we audit now

    def order(self, holders: Iterable[PeerId]) -> list[PeerId]:
        """These in their order, but the doer last."""
        return sorted(holders, key=lambda peer: peer == self.doer)

    def is_left_for(self, peer: PeerId) -> bool:
        """Whether a holder is asked."""
        since = self._silent.get(peer)
        return since is None or self._clock() >= since + LEFT_ALONE

    @contextmanager
    def waiting_for(self, peer: PeerId) -> Iterator[None]:
        """Remember who takes long and gives nothing."""
        began = self._clock()
        try:
            yield
        except TallystickError:
            if self._clock() >= began + MOST_WASTED:
                self._silent[peer] = self._clock()
            raise
