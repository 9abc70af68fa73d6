"""Offers bound to jobs: how a lease begins and ends, as rows.

Invariant: an offer has at most one live lease, in its own row (held while it changes) and by the
unique column `live_offer`. The caller is inside a transaction.
"""

from dataclasses import replace

from contracts.terms.amounts import PricePerPflop
from contracts.terms.digest import digest
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.service.ports import UnitOfWork
from market.service.rows import LeaseRow, OfferRow

ACCEPT_MILLIS = 30_000  # from the reservation to the LeaseAccept
BLOCK_MILLIS = 30_000  # an offer that let a lease lapse is not matched for as long
LIVE = ("reserved", "accepted", "active")


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
    await work.emit("lease", offer.offer)
    return row


async def end(row: LeaseRow, state: str, work: UnitOfWork, *, blocked_until: int = 0) -> None:
    """End a lease and free its offer."""
    await work[LeaseRow].put(replace(row, state=state, live_offer=None))
    offer = await work[OfferRow].lock(row.offer)
    if offer is not None and offer.lease == row.lease:
        until = max(offer.blocked_until, blocked_until)
        await work[OfferRow].put(replace(offer, lease=None, blocked_until=until))


async def end_leases(job: JobId, work: UnitOfWork) -> None:
    """End all live leases of a job."""
    for row in await live_leases(job, work):
        await end(row, "ended", work)
