"""What leases and outside auditors promised is reserved on chain; what is over is released.

A lease is active, and a bond holds, when the chain's event says so (`sync_chain`).
"""

from dataclasses import replace

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import JobState
from market.service.activate import activate, backs
from market.service.audit_bonds import note_refused, note_reserved
from market.service.coding import accept_of, decode_arguments
from market.service.pass_time import drop_lease, lapse_lease
from market.service.ports import Chain, UnitOfWork
from market.service.rows import AuditBondRow, ChainEventRow, JobRow, LeaseRow


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
    await _reserve_bonds(work, chain)
    return relayed


async def _refused(row: LeaseRow, refusal: str, now: UnixMillis, work: UnitOfWork) -> None:
    async with work:
        if "AlreadyReserved" in refusal:  # by somebody else, and maybe before it was accepted
            if await _is_backed(row, work):
                await activate(row.job, row.lease, now, work)
            return
        lapse = drop_lease if "JobNotOpen" in refusal else lapse_lease
        if held := await work[LeaseRow].lock(row.lease):
            await lapse(held, now, work)


async def _is_backed(promise: LeaseRow | AuditBondRow, work: UnitOfWork) -> bool:
    events = await work[ChainEventRow].where(job=promise.job, event="Reserved")
    return any(backs(decode_arguments(event.args), promise) for event in events)


async def _reserve_bonds(work: UnitOfWork, chain: Chain) -> None:
    async with work:
        accepted = await work[AuditBondRow].where(state="accepted")
    for bond in accepted:
        try:
            if bond.stake:
                await chain.reserve(accept_of(bond))
                continue
        except ContractRefused as refusal:
            await _refused_bond(bond, refusal.message, work)
            continue
        async with work:
            await note_reserved(bond, work)


async def _refused_bond(bond: AuditBondRow, refusal: str, work: UnitOfWork) -> None:
    async with work:
        if "AlreadyReserved" not in refusal:
            await note_refused(bond, work)
        elif await _is_backed(bond, work):
            await note_reserved(bond, work)


async def release_stakes(work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Free the stakes of jobs that are over; returns the leases. Safe to repeat."""
    released = []
    async with work:
        held = await work[LeaseRow].where(state=("ended", "lapsed"), stake_state="reserved")
        bonds = await work[AuditBondRow].where(state="reserved")
        jobs = {row.job for row in held} | {bond.job for bond in bonds}
        over = await _over(jobs, work)
    for row in held:
        if row.job in over and await _is_released(row.job, row.account, chain):
            async with work:
                await work[LeaseRow].put(replace(row, stake_state="released"))
            released.append(row.lease)
    for bond in bonds:
        if bond.job in over and await _is_released(bond.job, bond.account, chain):
            async with work:
                await work[AuditBondRow].put(replace(bond, state="released"))
    return released


async def _over(jobs: set[JobId], work: UnitOfWork) -> set[JobId]:
    refunded = JobState.REFUNDED.value
    rows = await work[JobRow].where(job=tuple(jobs), state=refunded) if jobs else []
    return {row.job for row in rows}


async def _is_released(job: JobId, account: Address, chain: Chain) -> bool:
    try:
        await chain.release(job, account)
    except ContractRefused as refusal:
        return "NothingReserved" in refusal.message  # else an open case: later
    return True
