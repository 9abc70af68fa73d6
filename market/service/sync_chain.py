"""The chain's events become rows: escrow, stakes, anchors, epochs and the ledger's other half.

Read by cursor up to the newest confirmed block. A cursor block that the chain no longer knows
means that it went back: events above the newest common block are forgotten and their entries booked
back, and reading goes on from there. Every event is applied once, in the transaction that moves
the cursor. The first block is a cursor, too, that is never forgotten: what is stored is of its
chain.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.terms.errors import ChainForgot, WrongConfiguration
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.domain.ledger import reversal
from market.service.apply_event import apply_event
from market.service.booking import book_event, entry_of, hold_ledger
from market.service.closes import with_close
from market.service.coding import encode_arguments
from market.service.ports import Chain, ChainBlock, ChainEvent, UnitOfWork
from market.service.post_offer import stake_row
from market.service.rows import (
    BatchRow,
    ChainEventRow,
    CursorRow,
    EpochRow,
    JobRow,
    LedgerEntryRow,
    StakeRow,
)
from market.service.slash_events import forget_slash
from market.service.store_snapshots import forget_snapshots

MAX_BLOCKS = 2000  # a round
KEPT_CURSORS = 256
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Synced:
    """What a round did."""

    head: int
    events: int
    went_back: bool


async def sync_chain(
    now: UnixMillis, work: UnitOfWork, chain: Chain, *, first_block: int
) -> Synced:
    """Apply what is new on chain. Safe to repeat and to interrupt.

    Raises:
        ChainForgot: the chain changed while it was read; the next round starts again.
        WrongConfiguration: it is another chain than the one that the database is of.
    """
    newest, head = await chain.heads()
    await chain.resend(newest)
    async with work:
        cursor, noted = await _cursor(work), await work[CursorRow].get(0)
    if cursor == CursorRow(head.number, head.hash):
        return Synced(head.number, 0, False)  # the chain knows it, so nothing went back either
    went_back = await _go_back(now, work, chain)
    if went_back:
        async with work:
            cursor = await _cursor(work)
    start = max(first_block, 1 + (cursor.block if cursor else 0))
    if head.number < start:
        return Synced(start - 1, 0, went_back)
    last = await _last_block(min(head.number, start + MAX_BLOCKS - 1), head, chain)
    events = await chain.events(start, last.number)
    stakes = await _stakes(events, chain)
    if await chain.block(last.number) != last:
        raise ChainForgot(f"block {last.number} was replaced while its events were read")
    first = await chain.block(0) if noted is None else None
    async with work:
        if first is not None:
            await work[CursorRow].put(CursorRow(0, first.hash))
        await _apply(events, last, now, work, chain.anchorer)
        for row in stakes:
            await work[StakeRow].put(row)
    return Synced(last.number, len(events), went_back)


def event_name(event: ChainEventRow | ChainEvent) -> str:
    """Under which an event's entries are booked; a transaction mined again has another block."""
    return f"chain:{event.block_hash.hex()}:{event.log_index}"


async def _cursor(work: UnitOfWork) -> CursorRow | None:
    rows = await work[CursorRow].where(order="-block", limit=1)
    return rows[0] if rows else None


async def _last_block(number: int, head: ChainBlock, chain: Chain) -> ChainBlock:
    if number == head.number:
        return head
    block = await chain.block(number)
    if block is None:
        raise ChainForgot(f"block {number}", number=number)
    return block


async def _apply(
    events: Sequence[ChainEvent],
    last: ChainBlock,
    now: UnixMillis,
    work: UnitOfWork,
    anchorer: Address,
) -> None:
    rows = [_row(event) for event in events]
    await _hold_jobs([row.job for row in rows], work)
    await hold_ledger(work)
    for event, row in zip(events, rows, strict=True):
        await work[ChainEventRow].add(row)
        await apply_event(event, event_name(event), now, work, anchorer)
    await work[CursorRow].put(CursorRow(last.number, last.hash))
    old = await work[CursorRow].where(order="-block", limit=KEPT_CURSORS + 1)
    for cursor in old[KEPT_CURSORS:]:
        if cursor.block:
            await work[CursorRow].remove(cursor.block)
    if events:
        await work.emit("chain", last.hash)


async def _hold_jobs(jobs: Sequence[JobId | None], work: UnitOfWork) -> None:
    """Jobs before the ledger, as in `booking`."""
    for job in sorted({job for job in jobs if job is not None}):
        await work[JobRow].lock(job)


def _row(event: ChainEvent) -> ChainEventRow:
    job = event.args.get("job")
    return ChainEventRow(
        job=JobId(job) if isinstance(job, bytes) else None,
        block=event.block,
        log_index=event.log_index,
        block_hash=event.block_hash,
        transaction=event.transaction,
        contract=event.contract,
        event=event.event,
        args=encode_arguments(event.args),
    )


async def _stakes(events: Sequence[ChainEvent], chain: Chain) -> list[StakeRow]:
    """Stakes of all accounts that an event of StakeRegistry names, as of now."""
    named = {
        Address(account)
        for event in events
        if event.contract == "stakes" and isinstance(account := event.args.get("account"), bytes)
    }
    return [stake_row(account, *await chain.stake_of(account)) for account in sorted(named)]


async def _go_back(now: UnixMillis, work: UnitOfWork, chain: Chain) -> bool:
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
        await forget_snapshots(common, work)  # holds jobs, so before the ledger
        events = await work[ChainEventRow].where(order="block", after=common)
        await _hold_jobs([event.job for event in events], work)
        await hold_ledger(work)
        for row in cursors[:gone]:
            await work[CursorRow].remove(row.block)
        for event in events:
            await _forget(event, work)
    return True


async def _forget(event: ChainEventRow, work: UnitOfWork) -> None:
    name = event_name(event)
    booked = await work[LedgerEntryRow].where(event=name, order="line")
    entries = [entry_of(row) for row in booked]
    await book_event(f"forgot:{name}", reversal(entries), work, overdraft=True)
    for row in booked:  # mined again in the same block it must be bookable again
        await work[LedgerEntryRow].put(replace(row, event=f"was:{row.sequence}:{name}"))
    await work[ChainEventRow].remove(event.block, event.log_index)
    if event.event in ("Anchored", "Recorded"):
        for batch in await work[BatchRow].where(block=event.block):
            await work[BatchRow].put(replace(batch, block=None, coin=None))
    if event.event in ("EpochPosted", "EpochFinal"):
        await _unsettle(event, work)
    if event.event in ("SlashAnnounced", "SlashEnded"):
        await forget_slash(event, work)
    if event.event in ("CloseRequested", "KeptOpen"):
        await _reopen(event, work)


async def _reopen(event: ChainEventRow, work: UnitOfWork) -> None:
    """Nothing that a lost close said is waited for; one that remains counts again."""
    row = None if event.job is None else await work[JobRow].lock(event.job)
    if row is not None:
        await work[JobRow].put(await with_close(row, work))


async def _unsettle(event: ChainEventRow, work: UnitOfWork) -> None:
    before = {"EpochPosted": ("proposed", "planned"), "EpochFinal": ("final", "proposed")}
    after, state = before[event.event]
    for epoch in await work[EpochRow].where(state=after, order="-epoch", limit=1):
        await work[EpochRow].put(replace(epoch, state=state))
