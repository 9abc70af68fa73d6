"""A poster pauses, resumes and cancels its job; what became of that, for everybody who knows it."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Response

from contracts.terms.signatures import recover
from market.api.callers import CallerDep, permit
from market.api.context import (
    ApiDep,
    DigestPath,
    JobPath,
    KeyedDep,
    WorkDep,
    answer,
    body,
    carry_out,
)
from market.api.routing import Routes
from market.bodies.jobs import AskJob, JobAction, OperationView
from market.bodies.routes import GET_OPERATION, POST_CANCEL, POST_PAUSE, POST_RESUME
from market.bodies.signing import wish_digest
from market.domain.jobs import Action
from market.service.ask_job import ask_job, find_operation
from market.service.ports import UnitOfWork

router = Routes(tags=["jobs"])

Ask = Callable[[JobAction], Awaitable[Response]]


async def _ask(
    job: JobPath,
    asked: Annotated[AskJob, body(AskJob)],
    who: CallerDep,
    api: ApiDep,
    work: WorkDep,
    this: KeyedDep,
) -> Ask:
    """A function that asks something of the job for whoever signed the request, or its body."""

    async def ask(action: JobAction) -> Response:
        if asked.signature is None:
            by = permit(who, "jobs").account
        else:
            by = recover(wish_digest(job, action, asked.at), asked.signature)

        async def make(work: UnitOfWork) -> Response:
            now = api.market.clock()
            found = await ask_job(job, Action(action), by=by, at=asked.at, now=now, work=work)
            return answer(found, POST_PAUSE.status)

        return await carry_out(this.of(by), work, make)

    return ask


AskDep = Annotated[Ask, Depends(_ask)]


@router.on(POST_PAUSE)
async def post_pause(ask: AskDep) -> Response:
    """Begin no step after the one in work; members stay, and what is open is still checked."""
    return await ask("pause")


@router.on(POST_RESUME)
async def post_resume(ask: AskDep) -> Response:
    """Go on where a pause began."""
    return await ask("resume")


@router.on(POST_CANCEL)
async def post_cancel(ask: AskDep) -> Response:
    """End the job for good after the step in work: what was done is paid, the rest goes back."""
    return await ask("cancel")


@router.on(GET_OPERATION)
async def get_operation(operation: DigestPath, api: ApiDep, work: WorkDep) -> OperationView:
    """What became of an operation, and what it waits for."""
    return await find_operation(operation, api.market.clock(), work)
