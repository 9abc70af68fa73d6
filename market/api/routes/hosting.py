"""Hosting: rows of jobs leased to the hosts that run their coordinators. Each shows its own
credential, and speaks for itself alone.
"""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import BadSignature
from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, HostDep, WorkDep, answer, body, check_host, documented
from market.api.refusals import refused
from market.bodies import (
    ClaimJobs,
    HostedJob,
    HostedJobs,
    HostHeartbeat,
    HostRegistered,
    RegisterHost,
)
from market.service.auditors import list_of_job
from market.service.host_jobs import (
    Endpoint,
    Heeded,
    claim_jobs,
    note_heeded,
    note_refused,
    register_host,
    renew_jobs,
)
from market.service.life import FOR_HOSTS
from market.service.ports import UnitOfWork
from market.service.rows import AuditorListRow, HostedJobRow, JobRow

router = APIRouter(tags=["hosting"], prefix="/hosting")


@router.post(
    "/register",
    response_model=HostRegistered,
    openapi_extra=documented(RegisterHost),
    responses=refused(BadSignature),
)
async def post_register(
    api: ApiDep, work: WorkDep, who: HostDep, posted: Annotated[RegisterHost, body(RegisterHost)]
) -> Response:
    """Name a host and the coordinators whose wallets it holds."""
    check_host(who, posted.host)
    claims = [(claim.address, claim.signature) for claim in posted.coordinators]
    known = await register_host(posted.host, claims, api.market.clock(), work)
    return answer(HostRegistered(coordinators=known))


@router.post("/claim", response_model=HostedJobs, openapi_extra=documented(ClaimJobs))
async def post_claim(
    api: ApiDep,
    work: WorkDep,
    who: HostDep,
    posted: Annotated[ClaimJobs, body(ClaimJobs)],
    wait: Annotated[
        int,
        Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a job, if it has none"),
    ] = 0,
) -> Response:
    """Take every job of this host's coordinators that nobody holds; answers all it holds, at once
    or when there may be a first one."""
    check_host(who, posted.host)
    with api.hostings.of(FOR_HOSTS) as news:
        rows = await claim_jobs(posted.host, api.market.clock(), work)
        if wait and not rows:
            await api.hostings.wait(news, wait)
            rows = await claim_jobs(posted.host, api.market.clock(), work)
    async with work:
        return answer(await _hosted(rows, work))


@router.post("/heartbeat", response_model=HostedJobs, openapi_extra=documented(HostHeartbeat))
async def post_heartbeat(
    api: ApiDep, work: WorkDep, who: HostDep, posted: Annotated[HostHeartbeat, body(HostHeartbeat)]
) -> Response:
    """Keep jobs for another while; a job that is missing in the answer is not held any more."""
    check_host(who, posted.host)
    endpoints = [Endpoint(each.job, each.address) for each in posted.endpoints]
    said = [Heeded(each.job, each.wish) for each in posted.heeded]
    async with work:
        await note_heeded(posted.host, said, work)
        refused_jobs = {each.job: each.why for each in posted.refused}
        await note_refused(posted.host, posted.jobs, refused_jobs, api.market.clock(), work)
        rows = await renew_jobs(posted.host, posted.jobs, endpoints, api.market.clock(), work)
        return answer(await _hosted(rows, work))


async def _hosted(rows: Sequence[HostedJobRow], work: UnitOfWork) -> HostedJobs:
    found = []
    for row in rows:
        job = await work[JobRow].get(row.job)
        if job is None:
            continue
        view = {
            "job": row.job,
            "state": job.state,
            "spec": job.signed,
            "until": row.until,
            "wanted": job.wanted,
            "wish": job.wish,
        }
        if await work[AuditorListRow].get(row.job):
            view["opening_block"], listed = await list_of_job(row.job, work)
            view["auditors"] = listed.encoded()
        found.append(HostedJob.model_validate(view))
    return HostedJobs(jobs=tuple(found))
