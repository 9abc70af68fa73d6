"""The chain's events become rows: the escrow's money, and what follows from it; anchors; slashes.

Read by cursor up to the newest confirmed block. A cursor block that the chain no longer knows
means that it went back: events above the newest common block are forgotten and the money is folded
without them, and reading goes on from there. Every event is applied once, in the transaction that
moves the cursor. The first block is a cursor, too, that is never forgotten: what is stored is of
its chain.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from contracts.chain.blocks import Block, Log
from contracts.governance.escrow import EscrowTimes
from contracts.terms.errors import ChainForgot, WrongConfiguration
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.service.apply_event import apply_event
from market.service.coding import encode_arguments
from market.service.due import note_due
from market.service.money import apply_money, rebuild_money
from market.service.ports import Chain, UnitOfWork
from market.service.rows import BatchRow, ChainEventRow, CursorRow, JobRow
from market.service.slash import NAMES, forget_slash

MAX_BLOCKS = 2000  # a round
KEPT_CURSORS = 256
log = logging.getLogger(__name__)


async def sync_chain(now: UnixMillis, work: UnitOfWork, chain: Chain, *, first_block: int) -> None:
    """Apply what is new on chain. Safe to repeat and to interrupt.

    Raises:
        ChainForgot: the chain changed while it was read; the next round starts again.
        WrongConfiguration: it is another chain than the one that the database is of.
    """
    times, (newest, head) = await chain.times(), await chain.heads()
    await chain.resend(newest)
    async with work:
        cursor, noted = await _cursor(work), await work[CursorRow].get(0)
    if cursor == CursorRow(head.number, head.hash):
        return  # the chain knows it, so nothing went back either
    if await _go_back(now, times, work, chain):
        async with work:
            cursor = await _cursor(work)
    start = max(first_block, 1 + (cursor.block if cursor else 0))
    if head.number < start:
        return
    last = await _last_block(min(head.number, start + MAX_BLOCKS - 1), head, chain)
    events = await chain.events(start, last.number)
    if await chain.block(last.number) != last:
        raise ChainForgot(f"block {last.number} was replaced while its events were read")
    first = await chain.block(0) if noted is None else None
    async with work:
        if first is not None:
            await work[CursorRow].put(CursorRow(0, first.hash))
        await _apply(events, last, times, now, work, chain.anchorer)


async def _cursor(work: UnitOfWork) -> CursorRow | None:
    rows = await work[CursorRow].where(order="-block", limit=1)
    return rows[0] if rows else None


async def _last_block(number: int, head: Block, chain: Chain) -> Block:
    if number == head.number:
        return head
    block = await chain.block(number)
    if block is None:
        raise ChainForgot(f"block {number}", number=number)
    return block


async def _apply(
    events: Sequence[Log],
    last: Block,
    times: EscrowTimes,
    now: UnixMillis,
    work: UnitOfWork,
    anchorer: Address,
) -> None:
    rows = [_row(event) for event in events]
    await _hold_jobs([row.job for row in rows], work)
    await work[ChainEventRow].add_all(rows)
    await apply_money(rows, times.announce, work)
    for event in events:
        await apply_event(event, times, now, work, anchorer)
    await work[CursorRow].put(CursorRow(last.number, last.hash))
    old = await work[CursorRow].where(order="-block", limit=KEPT_CURSORS + 1)
    for cursor in old[KEPT_CURSORS:]:
        if cursor.block:
            await work[CursorRow].remove(cursor.block)


async def _hold_jobs(jobs: Sequence[JobId | None], work: UnitOfWork) -> None:
    """Jobs before their money, as all who hold both."""
    for job in sorted({job for job in jobs if job is not None}):
        await work[JobRow].lock(job)


def _row(event: Log) -> ChainEventRow:
    job = event.args.get("job")
    return ChainEventRow(
        job=JobId(job) if isinstance(job, bytes) else None,
        block=event.block,
        log_index=event.log_index,
        transaction=event.transaction,
        contract=event.contract,
        event=event.event,
        args=encode_arguments(event.args),
        at=event.at,
    )


async def _go_back(now: UnixMillis, times: EscrowTimes, work: UnitOfWork, chain: Chain) -> bool:
    async with work:
        cursors = await work[CursorRow].where(order="-block")
    gone = 0
    for row in cursors:
        block = await chain.block(row.block)
        if block is not None and block.hash == row.hash:
            break
        gone += 1
    if not gone:
        return False
    if gone == len(cursors) and cursors[-1].block == 0:
        raise WrongConfiguration(
            "this is another chain than the one that the market's database is of: name a node of "
            "that chain, bring its data back, or use another data folder"
        )
    common = cursors[gone].block if gone < len(cursors) else -1
    log.warning("the chain went back to block %d: %d cursors forgotten", common, gone)
    async with work:
        events = await work[ChainEventRow].where(order="block", after=common)
        await _hold_jobs([event.job for event in events], work)
        for row in cursors[:gone]:
            await work[CursorRow].remove(row.block)
        for event in events:
            await work[ChainEventRow].remove(event.block, event.log_index)
        await rebuild_money(times.announce, work)
        for event in reversed(events):
            await _forget(event, now, work)
    return True


async def _forget(event: ChainEventRow, now: UnixMillis, work: UnitOfWork) -> None:
    """What was sent is sent again by its sender; what is due is looked at once more."""
    if event.event in ("Anchored", "Recorded"):
        for batch in await work[BatchRow].where(block=event.block):
            await work[BatchRow].put(replace(batch, block=None, beacon=None))
    if event.event in NAMES:
        await forget_slash(event, work)
    if event.job is not None and await work[JobRow].get(event.job) is not None:
        await note_due(event.job, "claim", now, work)
        await note_due(event.job, "release", now, work)
