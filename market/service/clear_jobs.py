"""A clearing round: funded jobs buy the leases they lack, the longest waiting first.

Safe to run twice at once: a job's row and the winning offers' rows are held while they change, and
rows that another round holds are left to it.
"""

from dataclasses import replace

from contracts.terms.errors import NoMatch
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.domain.auction import clear
from market.domain.jobs import JobState
from market.domain.matching import feasible, why_not
from market.domain.offers import Candidate
from market.domain.quote import need_of, num_slots
from market.service.candidates import candidates
from market.service.coding import encode_exclusions, spec_of
from market.service.leases import live_leases, reserve
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow, OfferRow

MAX_JOBS_A_ROUND = 100


async def clear_jobs(now: UnixMillis, work: UnitOfWork) -> list[LeaseRow]:
    """Run one round; returns the leases that it reserved."""
    async with work:
        waiting = await work[JobRow].where(
            state=JobState.FUNDED.value, order="posted_at", limit=MAX_JOBS_A_ROUND
        )
    reserved: list[LeaseRow] = []
    for row in waiting:
        async with work:  # one job a transaction: a round that stops half way keeps what it did
            for held in await work[JobRow].where(
                job=row.job, state=JobState.FUNDED.value, lock=True
            ):
                reserved += await _clear_one(held, now, work)
    return reserved


async def _clear_one(row: JobRow, now: UnixMillis, work: UnitOfWork) -> list[LeaseRow]:
    spec = spec_of(row).message
    leases = await live_leases(row.job, work)
    missing = _missing_stages(spec, leases)
    if not missing:
        return []
    offers = await candidates(now, work)
    need = need_of(spec, now)
    sellers = {lease.account for lease in leases}
    asks = [ask for ask in feasible(need, offers) if ask.seller not in sellers]
    try:
        cleared = clear(asks, slots=len(missing), reserve=spec.price_ceiling)
    except NoMatch:
        await _note_why(row, spec, offers, now, work)
        return []
    held = await _hold([ask.offer for ask in cleared.winners], work)
    if len(held) < len(missing):  # another round took one: all or nothing, the next round tries
        return []
    return [
        await reserve(offer, row.job, spec, stage=stage, price=cleared.price, now=now, work=work)
        for offer, stage in zip(held, missing, strict=True)
    ]


def _missing_stages(spec: JobSpec, leases: list[LeaseRow]) -> list[int]:
    """Stages that still need a peer, one entry for each, stage by stage."""
    have = [lease.stage for lease in leases]
    wanted = [
        stage for stage in range(spec.batch.stages) for _ in range(spec.batch.peers_per_stage)
    ]
    for stage in have:
        wanted.remove(stage)
    assert len(wanted) + len(have) == num_slots(spec)
    return wanted


async def _hold(offers: list[Digest], work: UnitOfWork) -> list[OfferRow]:
    held = await work[OfferRow].where(
        offer=tuple(offers), lease=None, withdrawn=False, order="price", lock=True
    )
    return held


async def _note_why(
    row: JobRow, spec: JobSpec, offers: list[Candidate], now: UnixMillis, work: UnitOfWork
) -> None:
    found = encode_exclusions(why_not(need_of(spec, now), offers))
    if found != row.not_matched:
        await work[JobRow].put(replace(row, not_matched=found))
