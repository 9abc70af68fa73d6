"""What checking has shown of a job's peers: audits, rates, odds, stakes."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import NotFound
from market.api.context import ApiDep, JobPath, WorkDep, answer
from market.api.refusals import refused
from market.bodies.auditing import ChecksView
from market.service.show_checks import checks_of_job
from verification.draws.odds import VOLUMES

router = APIRouter(tags=["checks"])

MAX_FALSIFIED = 10_000_000


@router.get("/jobs/{name}/checks", response_model=ChecksView, responses=refused(NotFound))
async def get_checks(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    falsified: Annotated[
        int | None,
        Query(ge=1, le=MAX_FALSIFIED, description="odds of so many peer-steps of each peer"),
    ] = None,
) -> Response:
    """Audits, rates, stakes and odds of a job's peers; `falsified`: of so many peer-steps, too."""
    volumes = VOLUMES if falsified is None else (falsified,)
    return answer(await checks_of_job(job, work, api.followed, volumes))
