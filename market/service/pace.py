"""How long a round of clearing, or of comparing, may take, and where the next one goes on.

What lapses, falls silent or passes its deadline is found in the same worker, so a round of many
jobs is cut into rounds of bounded time: one that ran out of time is followed by one that begins
with the job at which it stopped. A round reads one page of the jobs that are funded; the next page
follows when the last job of this one had its turn, and the first page follows the last. To say why
a job finds no bundle costs a thousand times what it costs to find that it does, so that has a bound
of its own: jobs are told in turn, each at most once until all were told, of all pages.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from contracts.terms.ids import JobId
from market.service.ports import Place

T = TypeVar("T")


@dataclass
class Pace:
    """A worker's, from round to round. Without limits every round does all."""

    seconds: float = inf
    explaining_seconds: float = inf
    monotonic: Callable[[], float] = time.monotonic
    behind: Place | None = None  # where the page of funded jobs begins; None: at the oldest
    _ends: float = inf
    _left: float = inf  # for explanations
    _next: JobId | None = None
    _told: set[JobId] = field(default_factory=set)
    _all_told: bool = True  # that had to be, since the first page was begun

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round begins and ends."""
        self._ends = self.monotonic() + self.seconds
        self._left = self.explaining_seconds
        if self.behind is None:
            if self._all_told:
                self._told.clear()
            self._all_told = True
        yield
        self._all_told &= self._left > 0

    @property
    def is_over(self) -> bool:
        """Whether the round has had its time."""
        return self.monotonic() > self._ends

    def turns(self, jobs: Sequence[T], key: Callable[[T], JobId]) -> Iterator[T]:
        """`jobs` while there is time, at least one; first the one at which the last round stopped,
        and those behind it."""
        place = next((n for n, job in enumerate(jobs) if key(job) == self._next), 0)
        self._next = None
        for number, job in enumerate((*jobs[place:], *jobs[:place])):
            if number and self.is_over:
                self._next = key(job)
                return
            yield job

    def may_explain(self, job: JobId) -> bool:
        """Whether it is this job's turn to be told, and there is time."""
        return self._left > 0 and job not in self._told

    @contextmanager
    def explaining(self, job: JobId) -> Iterator[None]:
        """Counts the time that an explanation takes."""
        begun = self.monotonic()
        try:
            yield
        finally:  # also of one that broke: the others have their turn
            self._left -= self.monotonic() - begun
            self._told.add(job)
