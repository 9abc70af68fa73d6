"""Whether anything is under way: else what serves jobs alone is looked at less often."""

from market.domain.jobs import HAS_ENDED, JobState
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, SealRow, SlashRow
from market.service.slash import UNENDED

_OPEN = tuple(sorted(state.value for state in JobState if state not in HAS_ENDED))


async def is_at_rest(work: UnitOfWork) -> bool:
    """Whether nobody works for a job, no seal waits to be anchored and nobody is slashed."""
    async with work:
        return not (
            await work[JobRow].where(state=_OPEN, limit=1)
            or await work[SealRow].where(batch=None, limit=1)
            or await work[SlashRow].where(state=UNENDED, limit=1)
        )
