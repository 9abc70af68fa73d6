"""Hosting: rows of jobs leased to the hosts that run their coordinators. Each shows its own
credential, and speaks for itself alone.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import BadSignature
from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, HostDep, WorkDep, answer, body, check_host, documented
from market.api.refusals import refused
from market.bodies.hosting import ClaimJobs, HostedJobs, HostHeartbeat, HostRegistered, RegisterHost
from market.service.host_jobs import claim_jobs, hear_host, register_host
from market.service.life import FOR_HOSTS

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
        held = await claim_jobs(posted.host, api.market.clock(), work)
        if wait and not held.jobs:
            await api.hostings.wait(news, wait)
            held = await claim_jobs(posted.host, api.market.clock(), work)
    return answer(held)


@router.post("/heartbeat", response_model=HostedJobs, openapi_extra=documented(HostHeartbeat))
async def post_heartbeat(
    api: ApiDep, work: WorkDep, who: HostDep, posted: Annotated[HostHeartbeat, body(HostHeartbeat)]
) -> Response:
    """Keep jobs for another while; a job that is missing in the answer is not held any more."""
    check_host(who, posted.host)
    return answer(await hear_host(posted, api.market.clock(), work))
