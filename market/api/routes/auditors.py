"""Outside auditors: staked accounts that can be drawn in jobs of others."""

from typing import Annotated

from fastapi import APIRouter, Response

from market.api.context import AccountPath, ApiDep, WorkDep, answer, body, documented
from market.api.schemas import AuditorJobs, AuditorRegistered, Heartbeat, RegisterAuditor
from market.service.auditors import Registration, hear_auditor, register_auditor

router = APIRouter(tags=["auditors"])


@router.post(
    "/auditors", response_model=AuditorRegistered, openapi_extra=documented(RegisterAuditor)
)
async def post_auditors(
    api: ApiDep, work: WorkDep, posted: Annotated[RegisterAuditor, body(RegisterAuditor)]
) -> Response:
    """Offer to audit from outside, under a key of one's own."""
    said = Registration(
        posted.account, posted.session_key, posted.device_class, posted.at, posted.signature
    )
    stake = await register_auditor(said, api.market.clock(), work, api.market.chain)
    return answer(AuditorRegistered(stake=stake.active))


@router.post(
    "/auditors/{name}/heartbeat", response_model=AuditorJobs, openapi_extra=documented(Heartbeat)
)
async def post_auditor_heartbeat(
    beat: Annotated[Heartbeat, body(Heartbeat)], account: AccountPath, api: ApiDep, work: WorkDep
) -> Response:
    """An auditor is alive; the answer is the jobs that may draw it."""
    jobs = await hear_auditor(account, beat.at, beat.signature, api.market.clock(), work)
    return answer(AuditorJobs(jobs=tuple(jobs)))
