"""The row of a job that somebody names."""

from contracts.terms.errors import NotFound
from contracts.terms.ids import JobId
from market.service.ports import UnitOfWork
from market.service.rows import JobRow


async def job_row(job: JobId, work: UnitOfWork) -> JobRow:
    """A job's row.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    return row
