"""Whether a job or an epoch is under way: else what serves them alone is looked at less often."""

from market.domain.jobs import JobState
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.settle_epoch import is_epoch_under_way

_OVER = (JobState.REFUNDED, JobState.FAILED)
_OPEN = tuple(sorted(state.value for state in JobState if state not in _OVER))


async def is_at_rest(work: UnitOfWork) -> bool:
    """Whether no job is open, none has escrow to settle, and no epoch is under way."""
    async with work:
        return not (
            await work[JobRow].where(state=_OPEN, limit=1)
            or await work[JobRow].where(settled=False, limit=1)
            or await is_epoch_under_way(work)
        )
