"""Accepted leases reserve their stake on chain; what is over is released.

A lease is active when the chain's event says so (`sync_chain`), and holds all of its stake.
"""

from dataclasses import replace

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.domain.jobs import JobState
from market.service.activate import activate, backs
from market.service.coding import accept_of, decode_arguments
from market.service.pass_time import drop_lease, lapse_lease
from market.service.ports import Chain, UnitOfWork
from market.service.rows import ChainEventRow, JobRow, LeaseRow


async def reserve_stakes(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Relay every LeaseAccept whose stake is not reserved; returns the leases. Safe to repeat."""
    async with work:
        accepted = await work[LeaseRow].where(state="accepted")
    relayed = []
    for row in accepted:
        try:
            if row.stake:
                await chain.reserve(accept_of(row))
            relayed.append(row.lease)
        except ContractRefused as refusal:
            await _refused(row, refusal.message, now, work)
            continue
        if not row.stake:
            async with work:
                await activate(row.job, row.lease, now, work)
    return relayed


async def _refused(row: LeaseRow, refusal: str, now: UnixMillis, work: UnitOfWork) -> None:
    async with work:
        if "AlreadyReserved" in refusal:  # by somebody else, and maybe before it was accepted
            events = await work[ChainEventRow].where(job=row.job, event="Reserved")
            if any(backs(decode_arguments(event.args), row) for event in events):
                await activate(row.job, row.lease, now, work)
            return
        lapse = drop_lease if "JobNotOpen" in refusal else lapse_lease
        if held := await work[LeaseRow].lock(row.lease):
            await lapse(held, now, work)


async def release_stakes(work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Free the stakes of jobs that are over; returns the leases. Safe to repeat."""
    over = (JobState.REFUNDED.value,)
    released = []
    async with work:
        held = await work[LeaseRow].where(state=("ended", "lapsed"), stake_state="reserved")
        jobs = {row.job: await work[JobRow].get(row.job) for row in held}
    for row in held:
        job = jobs[row.job]
        if job is None or job.state not in over:
            continue
        try:
            await chain.release(row.job, row.account)
        except ContractRefused as refusal:
            if "NothingReserved" not in refusal.message:
                continue  # an open case: later
        async with work:
            await work[LeaseRow].put(replace(row, stake_state="released"))
        released.append(row.lease)
    return released
