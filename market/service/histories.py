"""A job's history, folded from its messages; the newest fold of each job is remembered.

The rows are the truth: a fold that ends at another sequence than the rows is made again.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator

from contracts.governance.job import JobHistory, follow
from contracts.terms.history import Kept, decode_kept
from contracts.terms.ids import JobId
from contracts.terms.typed_data import Domain
from market.service.ports import UnitOfWork
from market.service.rows import MessageRow
from verification.docket import begin_job

MAX_REMEMBERED = 256
_PAGE = 1000


class Histories:
    """Folds by job, the least recently used forgotten first."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._folds: OrderedDict[JobId, tuple[int, JobHistory]] = OrderedDict()

    async def load(self, job: JobId, sequence: int, work: UnitOfWork) -> JobHistory:
        """The history of `job` up to message `sequence`, which is its last row."""
        known = self._folds.get(job)
        start, history = known if known and known[0] <= sequence else (0, self.new())
        async for item in read_items(job, work, after=start, last=sequence):
            history = follow(history, item)
        return history

    def new(self) -> JobHistory:
        """The history of a job of which nothing was said."""
        return JobHistory(self._domain, begin_job)

    def remember(self, job: JobId, sequence: int, history: JobHistory) -> None:
        """Keep a fold whose messages are committed."""
        self._folds[job] = (sequence, history)
        self._folds.move_to_end(job)
        if len(self._folds) > MAX_REMEMBERED:
            self._folds.popitem(last=False)


async def read_items(job: JobId, work: UnitOfWork, *, after: int, last: int) -> AsyncIterator[Kept]:
    """The items of a job's messages beyond sequence `after` up to `last`, which is its last row."""
    while after < last:
        page = await work[MessageRow].where(job=job, order="sequence", after=after, limit=_PAGE)
        for row in page:
            yield decode_kept(row.data)
        after = page[-1].sequence
