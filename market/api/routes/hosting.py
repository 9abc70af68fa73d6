"""Hosting: rows of jobs leased to the hosts that run their coordinators. Each shows its own
credential, and speaks for itself alone.
"""

from typing import Annotated

from fastapi import Query

from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import ApiDep, HostDep, WorkDep, check_host
from market.api.routing import Routes
from market.bodies.jobs import ClaimJobs, HostedJobs, HostHeartbeat, HostRegistered, RegisterHost
from market.bodies.routes import POST_CLAIM, POST_HOST, POST_HOST_HEARTBEAT
from market.service.host_jobs import claim_jobs, hear_host, register_host
from market.service.life import FOR_HOSTS

router = Routes(tags=["hosting"])


@router.on(POST_HOST)
async def post_register(
    api: ApiDep, work: WorkDep, who: HostDep, posted: RegisterHost
) -> HostRegistered:
    """Name a host and the coordinators whose wallets it holds."""
    check_host(who, posted.host)
    claims = [(claim.address, claim.signature) for claim in posted.coordinators]
    known = await register_host(posted.host, claims, api.market.clock(), work)
    return HostRegistered(coordinators=known)


@router.on(POST_CLAIM)
async def post_claim(
    api: ApiDep,
    work: WorkDep,
    who: HostDep,
    posted: ClaimJobs,
    wait: Annotated[
        int,
        Query(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a job, if it has none"),
    ] = 0,
) -> HostedJobs:
    """Take every job of this host's coordinators that nobody holds; answers all it holds, at once
    or when there may be a first one."""
    check_host(who, posted.host)
    with api.hostings.of(FOR_HOSTS) as news:
        held = await claim_jobs(posted.host, api.market.clock(), work)
        if wait and not held.jobs:
            await api.hostings.wait(news, wait)
            held = await claim_jobs(posted.host, api.market.clock(), work)
    return held


@router.on(POST_HOST_HEARTBEAT)
async def post_heartbeat(
    api: ApiDep, work: WorkDep, who: HostDep, posted: HostHeartbeat
) -> HostedJobs:
    """Keep jobs for another while; a job that is missing in the answer is not held any more."""
    check_host(who, posted.host)
    return await hear_host(posted, api.market.clock(), work)
