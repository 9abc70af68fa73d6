"""What the chain proves of a job, kept for auditors: after each epoch that debited it became final,
and after its refund.

A node proves its newest states only, so a snapshot is taken in time, at the newest block whose
events are in rows: what is final in rows is final in it, and it counts as confirmed. One snapshot
shows all that happened before it, so several that are due are one. Each proves the block of the one
before; where that is too far back, a new chain of snapshots begins.

The leaves of the settlement that is final in a block are the same for all jobs of an epoch, so they
are no part of what is stored: whoever is shown a snapshot gets them from the epoch's rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from contracts.governance.settlement import NOTHING_SETTLED, EpochSettlement
from contracts.terms.auditors import AuditorList
from contracts.terms.encoding import Value, decode
from contracts.terms.errors import ChainForgot, InvariantBroken, NotFound
from contracts.terms.history import decode_kept
from contracts.terms.ids import ZERO_DIGEST, Digest, EpochNumber, JobId
from contracts.terms.messages import JobOpening, LeaseAccept
from contracts.terms.signatures import decode_signed, expect
from market.domain.jobs import JobState
from market.service.ports import Audited, Chain, UnitOfWork
from market.service.rows import CursorRow, DebitRow, EpochRow, JobRow, MessageRow, SnapshotRow
from market.service.settle_epoch import load_settlement
from verification.audit.collecting import FindSettlement
from verification.audit.snapshots import (
    MAX_SNAPSHOTS_BYTES,
    Snapshot,
    claimants,
    decode_snapshot,
    encode_snapshot,
    is_near,
    settlement_value,
)

WITH_CLAIMANTS = tuple(each.model_fields["kind"].default for each in (LeaseAccept, AuditorList))
"""Kinds of kept items that name whom a job may pay."""


@dataclass(frozen=True)
class Due:
    """What a snapshot of a job has to show."""

    job: JobId
    epochs: tuple[EpochNumber, ...]
    refund: bool

    @property
    def reason(self) -> str:
        """The newest of it."""
        return "refund" if self.refund else f"epoch:{self.epochs[-1]}"


async def store_snapshots(work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Take the snapshots that are due; returns their jobs. Safe to repeat.

    Raises:
        ChainForgot: the node cannot prove the block (any more); a later round takes a newer one.
    """
    async with work:
        due = await due_snapshots(work)
        cursors = await work[CursorRow].where(order="-block", limit=1)
    settled: dict[Digest, EpochSettlement] = {}

    async def find(root: Digest) -> EpochSettlement:
        if root not in settled:
            async with work:
                settled[root] = await _settlement_of(root, work)
        return settled[root]

    return [each.job for each in due if await _take(each, cursors[0], find, work, chain)]


async def shown_snapshots(rows: Sequence[SnapshotRow], work: UnitOfWork) -> list[Value]:
    """Snapshots as an audit file holds them. The caller is inside a transaction."""
    leaves: dict[Digest, Value] = {}
    shown: list[Value] = []
    for row in rows:
        value = decode(row.data, max_bytes=MAX_SNAPSHOTS_BYTES)
        if not isinstance(value, dict):
            raise InvariantBroken("a stored snapshot is none")
        if row.root != ZERO_DIGEST:
            if row.root not in leaves:
                settlement = await _settlement_of(row.root, work)
                leaves[row.root] = cast(Value, settlement_value(settlement))
            value["settlement"] = leaves[row.root]
        shown.append(value)
    return shown


async def due_snapshots(work: UnitOfWork) -> list[Due]:
    """What no stored snapshot shows yet. The caller is inside a transaction."""
    epochs: dict[JobId, list[EpochNumber]] = {}
    for debit in await work[DebitRow].where(shown=False):
        epoch = await work[EpochRow].get(debit.epoch)
        if epoch is not None and epoch.state == "final":
            epochs.setdefault(debit.job, []).append(debit.epoch)
    over = await work[JobRow].where(state=JobState.REFUNDED.value, refund_shown=False)
    refunded = {row.job for row in over}
    return [
        Due(job, tuple(sorted(epochs.get(job, ()))), job in refunded)
        for job in sorted({*epochs, *refunded})
    ]


async def forget_snapshots(common: int, work: UnitOfWork) -> None:
    """Drop what blocks after `common` showed: the chain no longer has them."""
    gone = await work[SnapshotRow].where(order="block", after=common)
    for row in gone:
        await work[SnapshotRow].remove(row.job, row.number)
    for job in sorted({row.job for row in gone}):
        epochs = tuple(row.epoch for row in await work[DebitRow].where(job=job))
        await _mark(Due(job, epochs, refund=True), False, work)


async def _take(
    due: Due, at: CursorRow, find: FindSettlement, work: UnitOfWork, chain: Chain
) -> bool:
    """Take one; False if there is nothing to take."""
    async with work:
        newest = await work[SnapshotRow].where(job=due.job, order="-number", limit=1)
        audited = await audited_job(due.job, work)
        last = newest[0] if newest else None
        if audited is None or (last is not None and last.block >= at.block):
            await _mark(due, True, work)  # nothing to audit, or shown already
            return False
    before = None if last is None else decode_snapshot(last.data).header
    if before is not None and not is_near(before, at.block):
        before = None

    snapshot = await chain.snapshot(audited, find, block=at.block, before=before)
    async with work:
        await _store(due, snapshot, at, last.number + 1 if last else 1, work)
    return True


async def audited_job(job: JobId, work: UnitOfWork) -> Audited | None:
    """Whose storage concerns a job; None if it was never opened."""
    row = await work[JobRow].get(job)
    if row is None or row.opening is None:
        return None
    opening = expect(decode_signed(row.opening), JobOpening).message
    rows = await work[MessageRow].where(job=job, kind=WITH_CLAIMANTS)
    accounts = claimants(decode_kept(each.data) for each in rows)
    return Audited(job, opening.anchorer, accounts)


async def _settlement_of(root: Digest, work: UnitOfWork) -> EpochSettlement:
    if root == ZERO_DIGEST:
        return NOTHING_SETTLED
    rows = await work[EpochRow].where(root=root, order="-epoch", limit=1)
    if not rows:
        raise NotFound(f"the chain's final root {root.hex()} is of no epoch of ours")
    return await load_settlement(work, rows[0].epoch)


async def _store(
    due: Due, snapshot: Snapshot, at: CursorRow, number: int, work: UnitOfWork
) -> None:
    if snapshot.header.hash != at.hash or await work[CursorRow].get(at.block) != at:
        raise ChainForgot(f"block {at.block} was replaced while it was proved", number=at.block)
    root = snapshot.settlement.root.hash
    data = encode_snapshot(replace(snapshot, settlement=NOTHING_SETTLED))
    row = SnapshotRow(due.job, number, at.block, at.hash, due.reason, root, data)
    await work[SnapshotRow].add(row)
    await _mark(due, True, work)


async def _mark(due: Due, shown: bool, work: UnitOfWork) -> None:
    """Note that it is shown, or no longer."""
    if due.refund and (row := await work[JobRow].lock(due.job)):
        await work[JobRow].put(replace(row, refund_shown=shown))
    for epoch in due.epochs:
        if debit := await work[DebitRow].lock(epoch, due.job):
            await work[DebitRow].put(replace(debit, shown=shown))
