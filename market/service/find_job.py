"""A job's row, or NotFound. The caller is in a transaction."""

from contracts.terms.errors import NotFound
from contracts.terms.ids import JobId
from market.service.ports import UnitOfWork
from market.service.rows import JobRow


async def find_job(job: JobId, work: UnitOfWork) -> JobRow:
    """The row of a job.

    Raises:
        NotFound: no such job.
    """
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    return row
