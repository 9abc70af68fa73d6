"""Offers bound to jobs: how a lease begins, falls silent, comes back and ends, as rows.

Invariant: an offer has at most one live lease, in its own row (held while it changes) and by the
unique column `live_offer`. A silent lease is of a provider that vanished from a running job: its
offer is free, and it can go on under the same key and price when it is heard again. Whatever
becomes of a lease, what its account has at stake in the job stays there until the account's end.
The caller is inside a transaction.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.terms.amounts import PricePerPflop
from contracts.terms.digest import digest
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.bodies.events import LeaseEvent
from market.domain.reputation import Outcome
from market.service.feeds import event_of, tell_job
from market.service.ports import UnitOfWork
from market.service.reputation import note_duty
from market.service.rows import HeartbeatRow, LeaseRow, OfferRow

ACCEPT_MILLIS = 30_000  # from the reservation to the LeaseAccept
BOND_MILLIS = 120_000  # from then on, to the bond that is confirmed
BLOCK_MILLIS = 30_000  # an offer that let a lease lapse is not matched for as long
LIVE = ("reserved", "accepted", "active")
SILENT = "silent"


def lease_topic(offer: Digest) -> str:
    """What an agent that looks for work is woken by."""
    return f"lease:{offer.hex()}"


async def heard_of(names: Iterable[Digest], work: UnitOfWork) -> dict[Digest, UnixMillis]:
    """When each offer, lease or auditor of these was heard last, who was ever."""
    beats = await work[HeartbeatRow].where(subject=tuple(names))
    return {beat.subject: beat.heard_at for beat in beats}


async def live_leases(job: JobId, work: UnitOfWork) -> list[LeaseRow]:
    """Leases of a job that are not over."""
    return await work[LeaseRow].where(job=job, state=LIVE)


async def reserve(
    offer: OfferRow,
    job: JobId,
    spec: JobSpec,
    *,
    stage: int,
    price: PricePerPflop,
    now: UnixMillis,
    work: UnitOfWork,
) -> LeaseRow:
    """Bind an offer, whose row the caller holds, to a job."""
    lease = Digest(digest("lease", offer.offer + job + now.to_bytes(8, "big")))
    row = LeaseRow(
        lease=lease,
        offer=offer.offer,
        live_offer=offer.offer,
        job=job,
        account=offer.account,
        stage=stage,
        price=price,
        stake=spec.min_stake,
        state="reserved",
        reserved_at=now,
        accept_ends=UnixMillis(now + ACCEPT_MILLIS),
    )
    await work[LeaseRow].add(row)
    await work[OfferRow].put(replace(offer, lease=lease))
    work.wake(lease_topic(offer.offer))
    tell_of_lease(row, now, work)
    return row


def tell_of_lease(row: LeaseRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Tell who watches the job in which state the lease is now."""
    tell_job(row.job, event_of(LeaseEvent, row, at=now), work)


async def end(
    row: LeaseRow, state: str, now: UnixMillis, work: UnitOfWork, *, blocked_until: int = 0
) -> None:
    """End a lease and free its offer."""
    over = replace(row, state=state, live_offer=None)
    await work[LeaseRow].put(over)
    work.wake(lease_topic(row.offer))
    tell_of_lease(over, now, work)
    offer = await work[OfferRow].lock(row.offer)
    if offer is not None and offer.lease == row.lease:
        until = max(offer.blocked_until, blocked_until)
        await work[OfferRow].put(replace(offer, lease=None, blocked_until=until))


async def come_back(row: LeaseRow, offer: OfferRow, now: UnixMillis, work: UnitOfWork) -> LeaseRow:
    """Let a silent lease go on, as if it was heard now; the caller holds its offer's free row."""
    row = replace(row, state="active", live_offer=offer.offer)
    beat = await work[HeartbeatRow].lock(row.lease)
    last = beat.at if beat else UnixMillis(0)
    await work[HeartbeatRow].put(HeartbeatRow(row.lease, last, now))
    await work[LeaseRow].put(row)
    await work[OfferRow].put(replace(offer, lease=row.lease))
    work.wake(lease_topic(offer.offer))
    tell_of_lease(row, now, work)
    return row


async def end_leases(job: JobId, now: UnixMillis, work: UnitOfWork) -> None:
    """End all leases of a job that are not over; whoever is there until then has kept its word."""
    rows = await work[LeaseRow].where(job=job, state=(*LIVE, SILENT))
    for row in sorted(rows, key=lambda row: row.account):  # whose reputations are held
        await end(row, "ended", now, work)
        if row.state == "active":
            await note_duty(row.account, Outcome.KEPT, work)
