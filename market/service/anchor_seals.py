"""Seals go on chain in batches; every batch gets its beacon.

The batch is a row before its root is sent, and a (job, step) is in one batch, ever. Blocks and
beacons are noted by `sync_chain`, from the chain's events. A batch with a seal of a checked job has
its beacon recorded at once, since that job waits for it; others wait for the next batch to bring
it.
"""

from dataclasses import replace

from contracts.terms.errors import ContractRefused, InvariantBroken
from contracts.terms.ids import Digest
from contracts.terms.merkle import batch_root
from contracts.terms.moments import UnixMillis
from market.service.auditors import is_checked
from market.service.coding import spec_of
from market.service.ports import Chain, UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, JobRow, SealRow

MAX_SEALS = 10_000


async def anchor_seals(
    now: UnixMillis, work: UnitOfWork, chain: Chain, *, patience_millis: int
) -> list[Digest]:
    """Anchor new seals, or record the beacon that nothing else brings; returns what was sent.

    Args:
        now: Milliseconds.
        work: Unit of work.
        chain: Where to.
        patience_millis: How long the newest batch may wait for the next one to bring its beacon.
    """
    async with work:
        waiting = await work[BatchRow].where(transaction=None, order="number")
        if not waiting and (batch := await _gather(now, work)):
            waiting = [batch]
    for batch in waiting:
        transaction = await chain.anchor(batch.root)
        async with work:
            held = await work[BatchRow].lock(batch.root)
            if held is not None and held.transaction is None:
                await work[BatchRow].put(replace(held, transaction=transaction))
            is_awaited = await _is_awaited(batch.root, work)
        if is_awaited:
            await _try_to_record(batch.root, chain)
    if not waiting:
        await _record(now, work, chain, patience_millis)
    return [batch.root for batch in waiting]


async def is_anchor_due(work: UnitOfWork) -> bool:
    """Whether a seal is in no batch, or a batch has no beacon yet."""
    async with work:
        newest = await work[BatchRow].where(order="-number", limit=1)
        if newest and newest[0].beacon is None:
            return True
        return bool(await work[SealRow].where(batch=None, limit=1))


async def _gather(now: UnixMillis, work: UnitOfWork) -> BatchRow | None:
    """A new batch of all seals that are in none."""
    seals = await work[SealRow].where(batch=None, limit=MAX_SEALS, lock=True)
    if not seals:
        return None
    entries = sorted((seal.job, seal.step, seal.digest) for seal in seals)
    last = await work[BatchRow].where(order="-number", limit=1)
    number = last[0].number + 1 if last else 0
    batch = BatchRow(batch_root(entries), number, now)
    await work[BatchRow].add(batch)
    for seal in seals:
        await work[SealRow].put(replace(seal, batch=batch.root))
        await work[BatchEntryRow].add(BatchEntryRow(seal.job, seal.step, batch.root, seal.digest))
    return batch


async def _record(now: UnixMillis, work: UnitOfWork, chain: Chain, patience_millis: int) -> None:
    async with work:
        newest = await work[BatchRow].where(order="-number", limit=1)
    if not newest or newest[0].beacon is not None or newest[0].block is None:
        return
    if now - newest[0].created_at >= patience_millis:
        await _try_to_record(newest[0].root, chain)


async def _is_awaited(root: Digest, work: UnitOfWork) -> bool:
    """Whether a checked job has a seal in the batch."""
    entries = await work[BatchEntryRow].where(root=root)
    jobs = await work[JobRow].where(job=tuple({entry.job for entry in entries}))
    return any(is_checked(spec_of(row).message) for row in jobs)


async def _try_to_record(root: Digest, chain: Chain) -> None:
    try:
        await chain.record(root)
    except ContractRefused as refusal:
        if "NothingPending" in refusal.message:
            return  # recorded by somebody else; the event is on its way
        if "TooEarly" not in refusal.message:
            raise InvariantBroken(f"record: {refusal.message}") from refusal
