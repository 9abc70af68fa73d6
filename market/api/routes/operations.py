"""A poster pauses, resumes and cancels its job; what became of that, for everybody who knows it."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from contracts.terms.errors import BadSignature, Conflict, Expired, Forbidden, NotFound
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.api.callers import CallerDep, permit
from market.api.context import (
    Api,
    ApiDep,
    DigestPath,
    JobPath,
    Keyed,
    KeyedDep,
    WorkDep,
    answer,
    body,
    carry_out,
    documented,
)
from market.api.refusals import refused
from market.bodies.operations import AskJob, JobAction, OperationView
from market.bodies.signing import wish_digest
from market.domain.jobs import Action
from market.service.ask_job import ask_job, find_operation
from market.service.ports import UnitOfWork

router = APIRouter(tags=["jobs"])

DOCUMENTED = documented(AskJob)
REFUSALS = refused(BadSignature, Forbidden, NotFound, Expired, Conflict)


@dataclass(frozen=True)
class _Wish:
    """What is asked of a job, and by whom."""

    job: JobId
    action: JobAction
    at: UnixMillis
    by: Address


def _wish(action: JobAction) -> Any:
    async def read(
        job: JobPath,
        asked: Annotated[AskJob, body(AskJob)],
        who: CallerDep,
    ) -> _Wish:
        if asked.signature is None:
            by = permit(who, "jobs").account
        else:
            by = recover(wish_digest(job, action, asked.at), asked.signature)
        return _Wish(job, action, asked.at, by)

    return Depends(read)


@router.post(
    "/jobs/{name}/pause",
    response_model=OperationView,
    status_code=202,
    openapi_extra=DOCUMENTED,
    responses=REFUSALS,
)
async def post_pause(
    wish: Annotated[_Wish, _wish("pause")], api: ApiDep, work: WorkDep, this: KeyedDep
) -> Response:
    """Begin no step after the one in work; members stay, and what is open is still checked."""
    return await _ask(wish, api, work, this)


@router.post(
    "/jobs/{name}/resume",
    response_model=OperationView,
    status_code=202,
    openapi_extra=DOCUMENTED,
    responses=REFUSALS,
)
async def post_resume(
    wish: Annotated[_Wish, _wish("resume")], api: ApiDep, work: WorkDep, this: KeyedDep
) -> Response:
    """Go on where a pause began."""
    return await _ask(wish, api, work, this)


@router.post(
    "/jobs/{name}/cancel",
    response_model=OperationView,
    status_code=202,
    openapi_extra=DOCUMENTED,
    responses=REFUSALS,
)
async def post_cancel(
    wish: Annotated[_Wish, _wish("cancel")], api: ApiDep, work: WorkDep, this: KeyedDep
) -> Response:
    """End the job for good after the step in work: what was done is paid, the rest goes back."""
    return await _ask(wish, api, work, this)


@router.get("/operations/{name}", response_model=OperationView, responses=refused(NotFound))
async def get_operation(operation: DigestPath, api: ApiDep, work: WorkDep) -> Response:
    """What became of an operation, and what it waits for."""
    return answer(await find_operation(operation, api.market.clock(), work))


async def _ask(wish: _Wish, api: Api, work: UnitOfWork, this: Keyed) -> Response:
    async def make(work: UnitOfWork) -> Response:
        found = await ask_job(
            wish.job, Action(wish.action), by=wish.by, at=wish.at, now=api.market.clock(), work=work
        )
        return answer(found, 202)

    return await carry_out(this.of(wish.by), work, make)
