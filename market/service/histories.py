"""A job's history, folded from its messages; the newest fold of each job is remembered.

The rows are the truth: a fold that ends at another sequence than the rows is made again.
"""

from collections import OrderedDict

from contracts.governance.job import JobHistory, follow
from contracts.terms.history import decode_kept
from contracts.terms.ids import JobId
from contracts.terms.typed_data import Domain
from market.service.ports import UnitOfWork
from market.service.rows import MessageRow

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
        start, history = known if known and known[0] <= sequence else (0, JobHistory(self._domain))
        while start < sequence:
            page = await work[MessageRow].where(job=job, order="sequence", after=start, limit=_PAGE)
            for row in page:
                history = follow(history, decode_kept(row.data))
            start = page[-1].sequence
        return history

    def remember(self, job: JobId, sequence: int, history: JobHistory) -> None:
        """Keep a fold whose messages are committed."""
        self._folds[job] = (sequence, history)
        self._folds.move_to_end(job)
        if len(self._folds) > MAX_REMEMBERED:
            self._folds.popitem(last=False)
