"""A poster pauses, resumes and cancels its job; what became of that, for everybody who knows it."""

from typing import Annotated, cast

from fastapi import APIRouter, Response

from contracts.terms.ids import JobId
from contracts.terms.signatures import recover
from market.api.context import (
    ApiDep,
    DigestPath,
    JobPath,
    Once,
    OnceDep,
    WorkDep,
    answer,
    body,
    carry_out,
    documented,
)
from market.api.schemas import (
    AskJob,
    JobAction,
    JobState,
    JobWanted,
    OperationResult,
    OperationView,
    wish_digest,
)
from market.domain.jobs import Action
from market.service.ask_job import Operation, ask_job, find_operation
from market.service.ports import UnitOfWork

router = APIRouter(tags=["jobs"])

Asked = Annotated[AskJob, body(AskJob)]
DOCUMENTED = documented(AskJob)


@router.post(
    "/jobs/{name}/pause", response_model=OperationView, status_code=202, openapi_extra=DOCUMENTED
)
async def post_pause(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Asked, this: OnceDep
) -> Response:
    """Begin no step after the one in work; members stay, and what is open is still checked."""
    return await _ask(job, "pause", asked, api, work, this)


@router.post(
    "/jobs/{name}/resume", response_model=OperationView, status_code=202, openapi_extra=DOCUMENTED
)
async def post_resume(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Asked, this: OnceDep
) -> Response:
    """Go on where a pause began."""
    return await _ask(job, "resume", asked, api, work, this)


@router.post(
    "/jobs/{name}/cancel", response_model=OperationView, status_code=202, openapi_extra=DOCUMENTED
)
async def post_cancel(
    job: JobPath, api: ApiDep, work: WorkDep, asked: Asked, this: OnceDep
) -> Response:
    """End the job for good after the step in work: what was done is paid, the rest goes back."""
    return await _ask(job, "cancel", asked, api, work, this)


@router.get("/operations/{name}", response_model=OperationView)
async def get_operation(operation: DigestPath, api: ApiDep, work: WorkDep) -> Response:
    """What became of an operation, and what it waits for."""
    return answer(_view(await find_operation(operation, api.market.clock(), work)))


async def _ask(
    job: JobId, action: JobAction, asked: AskJob, api: ApiDep, work: UnitOfWork, this: Once
) -> Response:
    by = recover(wish_digest(job, action, asked.at), asked.signature)

    async def make(work: UnitOfWork) -> Response:
        now = api.market.clock()
        found = await ask_job(job, Action(action), by=by, at=asked.at, now=now, work=work)
        return answer(_view(found), 202)

    return await carry_out(this, work, make)


def _view(found: Operation) -> OperationView:
    row, outcome, job = found.row, found.outcome, found.job
    result = OperationResult(
        job_state=cast(JobState, job.state),
        wanted=cast(JobWanted, job.wanted),
        refunded=found.refunded,
    )
    return OperationView(
        operation=row.operation,
        job=row.job,
        action=cast(JobAction, row.action),
        asked_at=row.asked_at,
        state=outcome.state,
        waits_for=outcome.waits_for,
        until=outcome.until,
        result=result if outcome.state == "done" else None,
        error=outcome.error,
    )
