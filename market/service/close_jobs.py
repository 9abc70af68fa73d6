"""Jobs that are done or failed close on chain; what nobody earned goes back to the poster."""

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import JobState, RefundPaid
from market.service.coding import decode_pay, seal_of, spec_of
from market.service.life import happen
from market.service.ports import Chain, CloseProof, UnitOfWork
from market.service.rows import JobRow, SealRow


async def close_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Ask JobEscrow to close what has ended; returns the jobs. Safe to repeat."""
    closing = []
    async with work:
        ended = await work[JobRow].where(state=(JobState.FINISHED.value, JobState.FAILED.value))
        proofs = {row.job: await _newest(row, work) for row in ended}
    for row in ended:
        current = await chain.job(row.job)
        if current.state != "open" or not _may_close(row, proofs[row.job], now):
            continue
        await chain.close(spec_of(row).message, proofs[row.job])
        closing.append(row.job)
    return closing


async def refund_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Refund closed jobs whose delay is over; returns the jobs. Safe to repeat."""
    async with work:
        closed = await work[JobRow].where(state=JobState.CLOSED.value)
    refunded = []
    for row in closed:
        if row.refundable_at is None or row.refundable_at * 1000 > now:
            continue
        await chain.pass_time(row.refundable_at)
        try:
            await chain.refund(row.job)
            refunded.append(row.job)
        except ContractRefused as refusal:
            if "NothingToRefund" in refusal.message:
                async with work:
                    if held := await work[JobRow].lock(row.job):
                        await happen(held, RefundPaid(), now, work)
    return refunded


async def _newest(row: JobRow, work: UnitOfWork) -> CloseProof | None:
    seal = await work[SealRow].get(row.job, row.step) if row.step else None
    return CloseProof(seal_of(seal), decode_pay(seal.pay)) if seal else None


def _may_close(row: JobRow, proof: CloseProof | None, now: UnixMillis) -> bool:
    """With a `last` seal at any time, else past the deadline."""
    return (proof is not None and proof.seal.message.last) or row.deadline * 1000 < now
