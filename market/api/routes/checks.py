"""What checking has shown of a job's peers: audits, rates, odds, stakes."""

from typing import Annotated

from fastapi import Query

from market.api.context import ApiDep, JobPath, WorkDep
from market.api.routing import Routes
from market.bodies.offers import ChecksView
from market.bodies.routes import GET_CHECKS
from market.service.show_checks import checks_of_job
from verification.draws.odds import VOLUMES

router = Routes(tags=["checks"])

MAX_FALSIFIED = 10_000_000


@router.on(GET_CHECKS)
async def get_checks(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    falsified: Annotated[
        int | None,
        Query(ge=1, le=MAX_FALSIFIED, description="odds of so many peer-steps of each peer"),
    ] = None,
) -> ChecksView:
    """Audits, rates, stakes and odds of a job's peers; `falsified`: of so many peer-steps, too."""
    volumes = VOLUMES if falsified is None else (falsified,)
    return await checks_of_job(job, work, api.followed, volumes)
