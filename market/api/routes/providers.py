"""Providers: their offers and leases, what is known of them, outside auditors, and slashes.

Slashes are shown to everybody, each with what the convicted account answers.
"""

from typing import Annotated

from fastapi import Query, Response

from market.api.arrivals import MAX_WAIT_SECONDS
from market.api.context import AccountPath, ApiDep, DigestPath, JobPath, WorkDep
from market.api.cursors import asked
from market.api.routing import Routes
from market.bodies import offers, routes, slashes
from market.bodies.base import SignedBody
from market.service.accept_lease import accept_lease
from market.service.auditors import accept_bond, hear_auditor, register_auditor
from market.service.convictions import publish_evidence
from market.service.hear import hear_lease, hear_offer
from market.service.leases import lease_topic
from market.service.listing import Asked
from market.service.post_offer import post_offer, withdraw_offer
from market.service.show_offers import list_offers, show_lease, show_live_leases, show_provider
from market.service.show_slashes import find_convictions, slash_of, slashes_of_job
from market.service.slash import answer_slash
from verification.distances.thresholds import shipped_calibration

offers_router = Routes(tags=["offers"])
providers_router = Routes(tags=["providers"])
auditors_router = Routes(tags=["auditors"])
slashes_router = Routes(tags=["slashes"])
ROUTERS = (offers_router, providers_router, auditors_router, slashes_router)


# ------------------------------------------------------------------------------- offers and leases


@offers_router.on(routes.POST_OFFER)
async def post_offers(api: ApiDep, work: WorkDep, posted: SignedBody) -> offers.OfferStored:
    """Offer a machine."""
    row = await post_offer(posted.signed, api.market.clock(), work, api.market.chain)
    is_measured = shipped_calibration().admits(row.device_class)
    return offers.OfferStored(
        offer=row.offer, withdrawn=row.withdrawn, takes_checked_jobs=is_measured
    )


@offers_router.on(routes.GET_OFFERS)
async def get_offers(
    api: ApiDep, work: WorkDep, asked: Annotated[Asked, asked()]
) -> offers.OffersView:
    """List offers that stand or are leased, cheapest first."""
    return await list_offers(asked, api.market.clock(), work)


@offers_router.on(routes.DELETE_OFFER)
async def delete_offer(
    offer: DigestPath, api: ApiDep, work: WorkDep, withdrawal: offers.Withdrawal
) -> Response:
    """Take an offer back; a lease that it has goes on."""
    await withdraw_offer(offer, withdrawal.signature, api.market.clock(), work)
    return Response(status_code=204)


@offers_router.on(routes.POST_OFFER_HEARTBEAT)
async def post_offer_heartbeat(
    offer: DigestPath,
    api: ApiDep,
    work: WorkDep,
    beat: offers.Heartbeat,
    wait: Annotated[
        int,
        Query(
            ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait for a lease, if there is none"
        ),
    ] = 0,
) -> offers.LeasesView:
    """An agent is alive; the answer is its live leases, at once or when the first one comes."""
    with api.arrivals.of(lease_topic(offer)) as news:
        found = await hear_offer(offer, beat.at, beat.signature, api.market.clock(), work)
        if wait and not found.leases:
            await api.arrivals.wait(news, wait)
            found = await show_live_leases(offer, work)
    return found


@offers_router.on(routes.GET_LEASE)
async def get_lease(lease: DigestPath, work: WorkDep) -> offers.LeaseView:
    """A lease."""
    return await show_lease(lease, work)


@offers_router.on(routes.POST_ACCEPT)
async def post_accept(
    lease: DigestPath,
    api: ApiDep,
    work: WorkDep,
    accepted: offers.AcceptLease,
) -> offers.LeaseView:
    """Bind a provider to a job; the market sends the bond behind it to the escrow."""
    now, chain = api.market.clock(), api.market.chain
    async with work:
        await accept_lease(lease, accepted.accept, accepted.bond, now, work, chain)
        return await show_lease(lease, work)


@offers_router.on(routes.POST_LEASE_HEARTBEAT)
async def post_lease_heartbeat(
    lease: DigestPath, api: ApiDep, work: WorkDep, beat: offers.Heartbeat
) -> offers.LeaseHeard:
    """A peer is alive; the answer is the state of its lease."""
    now = api.market.clock()
    row = await hear_lease(lease, beat.at, beat.signature, now, work)
    return offers.LeaseHeard.of(row, heard_at=now)


# --------------------------------------------------------------------- what is known of a provider


@providers_router.on(routes.GET_PROVIDER)
async def get_provider(account: AccountPath, api: ApiDep, work: WorkDep) -> offers.ProviderView:
    """An account's reputation with its factors; a stranger has one too."""
    return await show_provider(account, api.market.clock(), work)


# -------------------------------------------------------------------------------- outside auditors


@auditors_router.on(routes.POST_AUDITOR)
async def post_auditors(
    api: ApiDep, work: WorkDep, posted: offers.RegisterAuditor
) -> offers.AuditorRegistered:
    """Offer to audit from outside, under a key of one's own."""
    free = await register_auditor(posted, api.market.clock(), work, api.market.chain)
    return offers.AuditorRegistered(free=free)


@auditors_router.on(routes.POST_AUDITOR_HEARTBEAT)
async def post_auditor_heartbeat(
    beat: offers.Heartbeat, account: AccountPath, api: ApiDep, work: WorkDep
) -> offers.AuditorJobs:
    """An auditor is alive; the answer is the jobs that may draw it, or would with its bond."""
    now = api.market.clock()
    return await hear_auditor(account, beat.at, beat.signature, now, work)


@auditors_router.on(routes.POST_AUDITOR_BOND)
async def post_auditor_bond(
    posted: offers.PostBond,
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
) -> offers.BondView:
    """Put stake behind reports in a job that asks for it; the market sends it to the escrow."""
    now = api.market.clock()
    return await accept_bond(account, posted.bond, now, work, api.market.chain)


# ----------------------------------------------------------------------------------------- slashes


@slashes_router.on(routes.GET_CONVICTIONS)
async def get_convictions(
    job: JobPath, work: WorkDep, asked: Annotated[Asked, asked()]
) -> slashes.ConvictionsView:
    """What a job's seals made slashable, who may show why, and what became of it."""
    return await find_convictions(work, asked, job=job)


@slashes_router.on(routes.GET_CONVICTIONS_OF)
async def get_convictions_of(
    account: AccountPath, work: WorkDep, asked: Annotated[Asked, asked()]
) -> slashes.ConvictionsView:
    """What an account was convicted of, in all jobs."""
    return await find_convictions(work, asked, account=account)


@slashes_router.on(routes.GET_SLASHES)
async def get_slashes(
    job: JobPath, work: WorkDep, asked: Annotated[Asked, asked()]
) -> slashes.SlashesView:
    """Slashes of a job's convicts, and how far each is."""
    return await slashes_of_job(job, work, asked)


@slashes_router.on(routes.POST_EVIDENCE)
async def post_evidence(
    posted: slashes.PostEvidence, job: JobPath, api: ApiDep, work: WorkDep
) -> slashes.SlashView:
    """An auditor names the bundle that shows what the job's seals ruled; slashing begins."""
    row = await publish_evidence(
        job,
        posted.subject,
        posted.bundle,
        (posted.session_key, posted.signature),
        now=api.market.clock(),
        work=work,
        bundles=api.market.bundles,
        blobs=api.market.blobs,
        chain=api.market.chain,
    )
    return slashes.SlashView.of(row)


@slashes_router.on(routes.GET_SLASH)
async def get_slash(evidence: DigestPath, work: WorkDep) -> slashes.SlashView:
    """A slash by its evidence."""
    return await slash_of(evidence, work)


@slashes_router.on(routes.POST_ANSWER)
async def post_answer(
    evidence: DigestPath, api: ApiDep, work: WorkDep, posted: slashes.AnswerSlash
) -> slashes.SlashView:
    """The convicted account shows a blob that speaks for it, beside the slash; it stops nothing."""
    row = await answer_slash(
        evidence, posted.answer, posted.signature,
        now=api.market.clock(), work=work, blobs=api.market.blobs,
    )  # fmt: skip
    return slashes.SlashView.of(row)
