"""Jobs that are done or failed close on chain; what nobody earned goes back to the poster.

A job whose coordinator is gone for good closes past its deadline by the last valid seal. What that
seal says is earned and not frozen is due, so settlement and audits pay by the seal that the close
shows, and only if a batch on chain holds it: we show no other, and wait until ours is anchored. Who
closes a job by less than our newest seal is answered with it. Source: docs/protocol.md 6.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import JobId
from contracts.terms.messages import Seal
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain import ledger
from market.domain.jobs import JobState, RefundPaid
from market.service.booking import balances_of
from market.service.coding import decode_pay, seal_of, spec_of
from market.service.life import happen
from market.service.ports import Chain, CloseProof, JobNow, UnitOfWork
from market.service.rows import BatchRow, ConvictionRow, JobRow, SealRow, SlashRow
from market.service.slash import UNENDED

log = logging.getLogger(__name__)

_FAILED = JobState.FAILED.value
_ENDED = (JobState.FINISHED.value, _FAILED)
_MAY_BE_CLOSING = (JobState.FINISHED.value, JobState.RUNNING.value, JobState.CLOSED.value)


async def close_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Close what has ended, and answer closes by less; returns the jobs. Safe to repeat.

    What the chain refuses of one job is told, and stops no other.
    """
    sent = []
    async with work:
        rows = await work[JobRow].where(state=_MAY_BE_CLOSING)
        rows += await _failed_with_money(work)
        rows = [row for row in rows if _has_ended(row) or _is_closing(row, now)]
        seals = {row.job: await _newest(row, work) for row in rows}
        rows = [row for row in rows if await _may_be_shown(seals[row.job], work)]
    for row in rows:
        try:
            if await _close(row, seals[row.job], chain):
                sent.append(row.job)
        except ContractRefused as refusal:  # somebody was quicker, or knows a seal that we do not
            log.warning(
                "job %s is not closed: %s: %s", row.job.hex(), refusal.code, refusal.message
            )
    return sent


async def refund_jobs(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Refund closed jobs whose delay is over; returns the jobs. Safe to repeat.

    Where somebody may still be slashed for a job, its refund waits for the restitution; for
    evidence of a conviction, and for who judges a contest, only so long.
    """
    async with work:
        closed = await work[JobRow].where(state=JobState.CLOSED.value)
        unended = await work[SlashRow].where(state=UNENDED)
    waiting = {slash.job for slash in unended if slash.state != "contested"}
    waiting |= await _to_be_known(closed, unended, now, work, chain)
    refunded = []
    for row in closed:
        if row.refundable_at is None or row.job in waiting:
            continue
        if not await chain.is_over(row.refundable_at):
            continue
        try:
            await chain.refund(row.job)
            refunded.append(row.job)
        except ContractRefused as refusal:
            if "NothingToRefund" in refusal.message:
                async with work:
                    if held := await work[JobRow].lock(row.job):
                        await happen(held, RefundPaid(), now, work)
    return refunded


async def _to_be_known(
    closed: Sequence[JobRow],
    unended: Sequence[SlashRow],
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
) -> set[JobId]:
    """Jobs in which an auditor may still show why somebody was convicted, or a contest waits.

    One response window longer than a refund takes: so even what the last seal that could be shown
    has ruled has the whole refund delay. Nobody holds others' money up for ever: neither who shows
    nothing, nor who contests, nor who judges. A case that is announced after the refund repays
    nothing; what an earlier one repays is there for whoever asks for the refund once more.
    """
    async with work:
        convictions = await work[ConvictionRow].where(job=tuple(row.job for row in closed))
    unshown = {each.job for each in convictions if each.evidence is None}
    unshown |= {slash.job for slash in unended if slash.state == "contested"}
    if not unshown:
        return unshown
    since = now - (await chain.network()).parameters["response_window"] * 1000
    late = (row for row in closed if row.refundable_at and row.refundable_at * 1000 <= since)
    return unshown - {row.job for row in late}


async def _close(row: JobRow, newest: SealRow | None, chain: Chain) -> bool:
    """Close it, or answer who closes it by less; False if there is nothing to do."""
    proof = None if newest is None else CloseProof(seal_of(newest), decode_pay(newest.pay))
    current = await chain.job(row.job)
    if current.state == "open" and _has_ended(row) and await _may_close(row, proof, chain):
        await chain.close(spec_of(row).message, proof, kept_open=current.kept_open)
        return True
    if current.state == "closing" and proof and _is_better(proof.seal.message, current):
        await chain.answer_close(spec_of(row).message, proof, kept_open=current.kept_open)
        return True
    return False


async def _failed_with_money(work: UnitOfWork) -> list[JobRow]:
    """Failed jobs that something was deposited for; the chain is asked about no other.

    The others are settled: anybody may order without paying. A deposit that comes late undoes that
    (`note_deposits`).
    """
    rows = await work[JobRow].where(state=_FAILED, settled=False)
    never = [row for row in rows if not row.step]
    held = await balances_of([ledger.escrow(row.job) for row in never], work)
    unpaid = {row.job for row in never if not held.get(ledger.escrow(row.job))}
    for job in sorted(unpaid):
        row = await work[JobRow].lock(job)
        if row is not None and row.state == _FAILED:
            await work[JobRow].put(replace(row, settled=True))
    return [row for row in rows if row.job not in unpaid]


async def _newest(row: JobRow, work: UnitOfWork) -> SealRow | None:
    return await work[SealRow].get(row.job, row.step) if row.step else None


async def _may_be_shown(newest: SealRow | None, work: UnitOfWork) -> bool:
    """Whether a batch on chain holds the seal; a `last` one is final whenever it comes there."""
    if newest is None or newest.last:
        return True
    batch = await work[BatchRow].get(newest.batch) if newest.batch else None
    return batch is not None and batch.block is not None


def _has_ended(row: JobRow) -> bool:
    """Whether it is to be closed; a later seal may have undone a close that was noted."""
    return row.state in _ENDED or (row.state == JobState.CLOSED.value and row.due is None)


def _is_closing(row: JobRow, now: UnixMillis) -> bool:
    return row.due is not None and row.ends_at is not None and now < row.ends_at * 1000


async def _may_close(row: JobRow, proof: CloseProof | None, chain: Chain) -> bool:
    """With a `last` seal at any time, else past the deadline."""
    is_last = proof is not None and proof.seal.message.last
    return is_last or await chain.is_over(UnixSeconds(row.deadline + 1))


def _is_better(seal: Seal, shown: JobNow) -> bool:
    """Of two seals the greater earned total counts, then the later step."""
    return (seal.earned, seal.step + 1) > (shown.earned, shown.seals)
