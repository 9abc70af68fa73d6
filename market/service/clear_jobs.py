"""A clearing round: jobs buy the leases they lack, those that cannot run yet before the others.

A job that is funded buys its bundle, all or nothing. One that is matched or runs takes back who was
silent, then replaces who is gone, then adds spares. Safe to run twice at once: a job's row and the
winning offers' rows are held while they change. The job's row is waited for, as the messages of a
busy job hold it most of the time; offers that another round holds are left to it. A job that
somebody is closing on chain takes no stake, so it buys nothing; nor does one that its poster paused
or cancelled, but who was silent in a paused job may come back.
"""

from collections.abc import Sequence
from dataclasses import replace

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.api.schemas import Excluded, RoundEvent, UnmatchedEvent
from market.domain.advice import WhyNot, why_no_bundle
from market.domain.bundles import Bundle, Seat, bundle_of, buy, deal
from market.domain.depth import Winner
from market.domain.jobs import JobState, Wanted
from market.domain.matching import feasible, judge
from market.domain.offers import Candidate, is_heard
from market.domain.quote import need_of
from market.service.candidates import candidates
from market.service.coding import encode_why_not, encode_winners, spec_of
from market.service.feeds import tell_job, tell_market
from market.service.leases import LIVE, SILENT, come_back, reserve
from market.service.ports import UnitOfWork
from market.service.rows import AuditBondRow, JobRow, LeaseRow, OfferRow, RoundRow
from verification.thresholds import shipped_calibration

MAX_JOBS_A_ROUND = 100
_UNDER_WAY = (JobState.MATCHED.value, JobState.RUNNING.value)


async def clear_jobs(now: UnixMillis, work: UnitOfWork) -> list[LeaseRow]:
    """Run one round; returns the leases that it reserved or brought back."""
    async with work:
        waiting = await work[JobRow].where(
            state=JobState.FUNDED.value, due=None, order="posted_at", limit=MAX_JOBS_A_ROUND
        )
        waiting += await work[JobRow].where(state=_UNDER_WAY, due=None, order="posted_at")
    found: list[LeaseRow] = []
    for row in waiting:
        async with work:  # one job a transaction: a round that stops half way keeps what it did
            held = await work[JobRow].lock(row.job)
            if held is not None and held.state == row.state and held.due is None:
                found += await _clear_one(held, now, work)
    return found


async def _clear_one(row: JobRow, now: UnixMillis, work: UnitOfWork) -> list[LeaseRow]:
    spec = spec_of(row).message
    bundle = bundle_of(spec)
    leases = await work[LeaseRow].where(job=row.job)
    live = [lease for lease in leases if lease.state in LIVE]
    if not _wants(bundle, live) or row.wanted == Wanted.CANCELLED:
        return []
    offers = await candidates(now, work)
    back = await _bring_back(leases, bundle.without(len(live)), offers, now, work)
    live += back
    if not _wants(bundle, live) or row.wanted != Wanted.RUNNING:
        return back
    return back + await _buy(row, spec, leases, live, offers, now, work)


def _wants(bundle: Bundle, live: Sequence[LeaseRow]) -> bool:
    missing = bundle.without(len(live))
    return missing.slots + missing.spares > 0


async def _bring_back(
    leases: Sequence[LeaseRow],
    missing: Bundle,
    offers: Sequence[Candidate],
    now: UnixMillis,
    work: UnitOfWork,
) -> list[LeaseRow]:
    """Let silent leases whose offers are heard again, and are free, go on."""
    heard = {each.offer for each in offers if is_heard(each.heard_at, now) and not each.leased}
    silent = [lease for lease in leases if lease.state == SILENT and lease.offer in heard]
    back = []
    for lease in sorted(silent, key=lambda lease: lease.lease)[: missing.slots + missing.spares]:
        for offer in await _hold([lease.offer], work):
            back.append(await come_back(lease, offer, now, work))
    return back


async def _buy(
    row: JobRow,
    spec: JobSpec,
    leases: Sequence[LeaseRow],
    live: Sequence[LeaseRow],
    offers: Sequence[Candidate],
    now: UnixMillis,
    work: UnitOfWork,
) -> list[LeaseRow]:
    bundle, funded = bundle_of(spec), row.state == JobState.FUNDED.value
    # A stake that is reserved for this job stays so: the chain takes no second one for it.
    taken = {lease.account for lease in leases if lease in live or lease.stake_state == "reserved"}
    bonds = await work[AuditBondRow].where(job=row.job, state=("accepted", "reserved"))
    taken |= {bond.account for bond in bonds}
    free = [each for each in offers if each.account not in taken]
    seats = await _seats(live, work)
    missing = bundle.without(len(live))
    asks = feasible(need_of(spec, now, shipped_calibration()), free)
    told = RoundRow(
        number=0,
        job=row.job,
        at=now,
        slots=missing.slots,
        spares=missing.spares,
        reserve=spec.price_ceiling,
        asks=len(asks),
        is_bought=False,
        price=None,
        winners=encode_winners([]),
        excluded=encode_why_not(WhyNot()),
    )
    try:
        cleared = buy(
            asks,
            bundle,
            seats,
            reserve=spec.price_ceiling,
            all_or_nothing=funded,
        )
    except NoMatch:
        if funded:
            await _note_why(row, spec, missing, free, told, work)
        return []
    held = {offer.offer: offer for offer in await _hold([w.offer for w in cleared.winners], work)}
    winners = [held[ask.offer] for ask in cleared.winners if ask.offer in held]
    if funded and len(winners) < missing.slots:
        return []  # another round took one: all or nothing, the next round tries
    speeds = [offer.flops_per_second for offer in winners]
    stages = deal(speeds, seats, num_stages=spec.batch.stages)
    if winners:
        _tell_of_round(row, len(winners), cleared.price, len(free), now, work)
        bought = [
            Winner(offer.offer, offer.account, offer.price, stage, offer.device_class)
            for offer, stage in zip(winners, stages, strict=True)
        ]
        told = replace(told, is_bought=True, price=cleared.price, winners=encode_winners(bought))
        await work[RoundRow].add(told)
    return [
        await reserve(offer, row.job, spec, stage=stage, price=cleared.price, now=now, work=work)
        for offer, stage in zip(winners, stages, strict=True)
    ]


def _tell_of_round(
    row: JobRow,
    bought: int,
    price: PricePerPflop | None,
    offers: int,
    now: UnixMillis,
    work: UnitOfWork,
) -> None:
    event = RoundEvent(at=now, job=row.job, bought=bought, price=price, offers=offers)
    tell_market(event, work)


async def _seats(live: Sequence[LeaseRow], work: UnitOfWork) -> list[Seat]:
    names = tuple(lease.offer for lease in live)
    offers = await work[OfferRow].where(offer=names) if names else []
    speeds = {offer.offer: offer.flops_per_second for offer in offers}
    return [Seat(lease.stage, speeds[lease.offer], lease.price) for lease in live]


async def _hold(offers: list[Digest], work: UnitOfWork) -> list[OfferRow]:
    if not offers:
        return []
    return await work[OfferRow].where(
        offer=tuple(offers), lease=None, withdrawn=False, order="price", lock=True
    )


async def _note_why(
    row: JobRow,
    spec: JobSpec,
    missing: Bundle,
    offers: Sequence[Candidate],
    told: RoundRow,
    work: UnitOfWork,
) -> None:
    """Said anew only when it is something else: the rounds of a job that waits are alike."""
    need = need_of(spec, told.at, shipped_calibration())
    why = why_no_bundle(spec, need, judge(need, offers), missing)
    found = encode_why_not(why)
    if found == row.not_matched:
        return
    await work[JobRow].put(replace(row, not_matched=found))
    await work[RoundRow].add(replace(told, excluded=found))
    shown = tuple(
        Excluded(constraint=each.constraint, offers=each.offers, would_fit=each.would_fit)
        for each in why.exclusions
    )
    tell_job(row.job, UnmatchedEvent(at=told.at, not_matched=shown), work)
    _tell_of_round(row, 0, None, len(offers), told.at, work)
