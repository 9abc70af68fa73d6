"""Outside auditors: staked accounts that can be drawn in jobs of others."""

from market.api.context import AccountPath, ApiDep, WorkDep
from market.api.routing import Routes
from market.bodies.offers import (
    AcceptLease,
    AuditorJobs,
    AuditorRegistered,
    BondView,
    Heartbeat,
    RegisterAuditor,
)
from market.bodies.routes import POST_AUDITOR, POST_AUDITOR_BOND, POST_AUDITOR_HEARTBEAT
from market.service.audit_bonds import accept_bond
from market.service.auditors import hear_auditor, register_auditor

router = Routes(tags=["auditors"])


@router.on(POST_AUDITOR)
async def post_auditors(api: ApiDep, work: WorkDep, posted: RegisterAuditor) -> AuditorRegistered:
    """Offer to audit from outside, under a key of one's own."""
    stake = await register_auditor(posted, api.market.clock(), work, api.market.chain)
    return AuditorRegistered(stake=stake.active)


@router.on(POST_AUDITOR_HEARTBEAT)
async def post_auditor_heartbeat(
    beat: Heartbeat, account: AccountPath, api: ApiDep, work: WorkDep
) -> AuditorJobs:
    """An auditor is alive; the answer is the jobs that may draw it, or would with its stake."""
    now = api.market.clock()
    return await hear_auditor(account, beat.at, beat.signature, now, work)


@router.on(POST_AUDITOR_BOND)
async def post_auditor_bond(
    accepted: AcceptLease,
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
) -> BondView:
    """Reserve stake for a job that asks for it; the market relays it to the chain."""
    return await accept_bond(account, accepted.signed, work, api.market.chain)
