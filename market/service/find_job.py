"""A row that is asked for by its name, or NotFound. The caller is in a transaction."""

from typing import TypeVar

from contracts.terms.errors import NotFound
from contracts.terms.ids import JobId
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, Row

R = TypeVar("R", bound=Row)


async def find_job(job: JobId, work: UnitOfWork, *, lock: bool = False) -> JobRow:
    """The row of a job, held until the transaction ends if it is to `lock`.

    Raises:
        NotFound: no such job.
    """
    row = await work[JobRow].lock(job) if lock else await work[JobRow].get(job)
    return need(row, "job", job=job)


def need(row: R | None, what: str, **name: bytes) -> R:
    """The row, if there is one.

    Raises:
        NotFound: there is none of this name.
    """
    if row is None:
        raise NotFound(f"no such {what}", **{key: value.hex() for key, value in name.items()})
    return row
