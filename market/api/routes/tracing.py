"""The audit explorer: sealed steps, their lines, and the whole trace of a peer-step."""

from typing import Annotated

from fastapi import Path, Query

from contracts.terms.ids import MAX_STEPS, StepNumber
from market.api.context import ApiDep, JobPath, PeerPath, WorkDep
from market.api.routing import Routes
from market.bodies.routes import GET_STEP, GET_STEPS, GET_WORK
from market.bodies.tracing import (
    STEP_LINES_PAGE,
    STEPS_PAGE,
    StepLinesView,
    StepsView,
    WorkTraceView,
)
from market.service.show_steps import lines_of_step, steps_of
from market.service.trace_work import trace_work

router = Routes(tags=["audit explorer"])

StepPath = Annotated[int, Path(ge=1, lt=MAX_STEPS, description="number of a step")]


@router.on(GET_STEPS)
async def get_steps(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=STEPS_PAGE, description="steps at most")] = STEPS_PAGE,
) -> StepsView:
    """Sealed steps beyond `after`: seal, anchor, coin, and what was drawn and came of it."""
    async with work:
        return await steps_of(job, work, api.followed, after=after, limit=limit)


@router.on(GET_STEP)
async def get_step(
    job: JobPath,
    step: StepPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many lines are left out")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=STEP_LINES_PAGE, description="lines at most")
    ] = STEP_LINES_PAGE,
) -> StepLinesView:
    """A step's peer-steps and paid audits."""
    async with work:
        found = await lines_of_step(
            job, StepNumber(step), work, api.followed, after=after, limit=limit
        )
    return found


@router.on(GET_WORK)
async def get_work(
    job: JobPath,
    step: StepPath,
    peer: PeerPath,
    api: ApiDep,
    work: WorkDep,
    number: Annotated[int, Query(alias="round", ge=0, le=2**40, description="of the work")] = 0,
) -> WorkTraceView:
    """A peer-step from its GradCommit to the transactions that paid it, with all Merkle paths."""
    async with work:
        found = await trace_work(
            job, StepNumber(step), peer, number, work=work, followed=api.followed
        )
    return found
