"""Outside auditors: staked accounts that can be drawn in jobs of others."""

from typing import Annotated

from fastapi import APIRouter, Response

from contracts.terms.errors import (
    BadSignature,
    Conflict,
    Expired,
    InsufficientStake,
    NotFound,
    Refused,
)
from market.api.context import AccountPath, ApiDep, WorkDep, answer, body, documented
from market.api.refusals import CHAIN, SIGNED_MESSAGE, refused
from market.bodies.auditing import AuditorJobs, AuditorRegistered, BondView, RegisterAuditor
from market.bodies.offers import AcceptLease, Heartbeat
from market.service.audit_bonds import accept_bond
from market.service.auditors import hear_auditor, register_auditor

router = APIRouter(tags=["auditors"])


@router.post(
    "/auditors",
    response_model=AuditorRegistered,
    openapi_extra=documented(RegisterAuditor),
    responses=refused(BadSignature, Expired, InsufficientStake, Refused, *CHAIN),
)
async def post_auditors(
    api: ApiDep, work: WorkDep, posted: Annotated[RegisterAuditor, body(RegisterAuditor)]
) -> Response:
    """Offer to audit from outside, under a key of one's own."""
    stake = await register_auditor(posted, api.market.clock(), work, api.market.chain)
    return answer(AuditorRegistered(stake=stake.active))


@router.post(
    "/auditors/{name}/heartbeat",
    response_model=AuditorJobs,
    openapi_extra=documented(Heartbeat),
    responses=refused(NotFound, BadSignature, Expired),
)
async def post_auditor_heartbeat(
    beat: Annotated[Heartbeat, body(Heartbeat)], account: AccountPath, api: ApiDep, work: WorkDep
) -> Response:
    """An auditor is alive; the answer is the jobs that may draw it, or would with its stake."""
    now = api.market.clock()
    return answer(await hear_auditor(account, beat.at, beat.signature, now, work))


@router.post(
    "/auditors/{name}/bonds",
    response_model=BondView,
    openapi_extra=documented(AcceptLease),
    responses=refused(*SIGNED_MESSAGE, NotFound, Conflict),
)
async def post_auditor_bond(
    accepted: Annotated[AcceptLease, body(AcceptLease)],
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
) -> Response:
    """Reserve stake for a job that asks for it; the market relays it to the chain."""
    return answer(await accept_bond(account, accepted.signed, work, api.market.chain))
