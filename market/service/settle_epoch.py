"""An epoch: planned from anchored seals, proposed, and final after its window.

The plan is stored before it is proposed, so that a crash anywhere repeats the same epoch; a plan
that the chain refuses is dropped and made again, without the debits that it refuses alone. One
epoch at a time. What is proposed or final is noted by `sync_chain`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from contracts.governance.settlement import (
    NOTHING_SETTLED,
    AccountPay,
    ClosedStatement,
    EpochSettlement,
    SealStatement,
    Statement,
    settle,
)
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused, InvariantBroken
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, JobId, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import EpochEvent
from market.bodies.settlement import EpochState
from market.domain.jobs import SETTLES, JobState
from market.service.closes import payable_due, shown_by_close
from market.service.coding import decode_pay, seal_of, spec_of
from market.service.feeds import tell_market
from market.service.ports import Chain, PayOrder, UnitOfWork
from market.service.refused_debits import RefusedDebits, find_refused
from market.service.rows import BatchRow, DebitRow, EpochLeafRow, EpochRow, JobRow, SealRow

LEAVES_AT_ONCE = 5000
"""Rows of a statement: a round of the chain's worker has to let others have the processor."""
MAX_SEALS_OFFERED = 1000  # of a job, newest first
UNDER_WAY = ("planned", "proposed")
MAX_DEBITS = 300
"""Of an epoch: at 39,000 gas each, and a fifth to spare, below the 2^24 that a transaction may have
(EIP-7825)."""
_SETTLES = tuple(sorted(state.value for state in SETTLES))


@dataclass(frozen=True)
class Rhythm:
    """When epochs are due."""

    epoch_millis: int
    max_epoch_cap: BaseUnits


async def settle_epoch(
    now: UnixMillis, work: UnitOfWork, chain: Chain, rhythm: Rhythm, refused: RefusedDebits
) -> EpochNumber | None:
    """Do the next thing that is due; returns the epoch that was planned, if one was."""
    async with work:
        newest = await _newest(work)
    if newest is not None and newest.state == "planned":
        await _propose(newest, now, work, chain, refused)
        return None
    if newest is not None and newest.state == "proposed":
        await _finalize(newest, chain)
        return None
    planned = await plan_epoch(now, work, chain, rhythm, refused)
    if planned is not None:
        await _propose(planned, now, work, chain, refused)
    return planned.epoch if planned else None


async def may_settle(work: UnitOfWork) -> bool:
    """Whether an epoch is under way, or a job may have something to settle."""
    async with work:
        if await is_epoch_under_way(work):
            return True
        return bool(await work[JobRow].where(state=_SETTLES, settled=False, limit=1))


async def is_epoch_under_way(work: UnitOfWork) -> bool:
    """Whether the newest epoch is planned or proposed."""
    newest = await _newest(work)
    return newest is not None and newest.state in UNDER_WAY


async def plan_epoch(
    now: UnixMillis, work: UnitOfWork, chain: Chain, rhythm: Rhythm, refused: RefusedDebits
) -> EpochRow | None:
    """Store the next epoch, if it is due and would pay anything."""
    on_chain = await chain.newest_epoch()
    if not await chain.is_over(on_chain.next_at):
        return None
    async with work:
        newest = await _newest(work)
        if newest is not None and newest.state in UNDER_WAY:
            return None
        previous = await load_settlement(work)
        statements: list[Statement] = []
        for row in await _due_jobs(newest, now, rhythm, work):
            ends_at = None if row.due is None else row.ends_at
            is_final = ends_at is not None and await chain.is_over(ends_at)
            statements += await _statements(row, previous, rhythm, work, is_final=is_final)
        number = EpochNumber(on_chain.number + 1)
        settlement = settle(number, previous, statements)
        chosen = await _chosen(settlement, now, refused, work)
        if len(chosen) < len(settlement.debits):
            settlement = settle(number, previous, [st for st in statements if st.job in chosen])
        return await _store(settlement, now, work) if settlement.debits else None


async def load_settlement(work: UnitOfWork, epoch: EpochNumber | None = None) -> EpochSettlement:
    """The settlement of an epoch that was not rejected; the newest one if none is named.

    Debits are not loaded: a settlement that something follows is its accounts.
    """
    if epoch is None:
        rows = await work[EpochRow].where(state=("proposed", "final"), order="-epoch", limit=1)
        if not rows:
            return NOTHING_SETTLED
        epoch = rows[0].epoch
    row = await work[EpochRow].get(epoch)
    known = None if row is None else _REMEMBERED.get((epoch, row.root))
    if known is not None:
        return known
    leaves = await work[EpochLeafRow].where(epoch=epoch)
    by_account: dict[Address, list[tuple[JobId, BaseUnits]]] = {}
    for leaf in leaves:
        by_account.setdefault(leaf.account, []).append((leaf.job, leaf.cumulative))
    accounts = (AccountPay(each, tuple(sorted(by_account[each]))) for each in sorted(by_account))
    return EpochSettlement(epoch, tuple(accounts), ())


_REMEMBERED: dict[tuple[EpochNumber, Digest], EpochSettlement] = {}
"""The newest settlement that was made or checked here, by its root, which binds its leaves: so that
the next one hashes only what changed."""


def _remember(settlement: EpochSettlement) -> None:
    _REMEMBERED.clear()
    kept = replace(settlement, debits=())
    _REMEMBERED[settlement.epoch, settlement.root.hash] = kept


async def parts_of(epoch: EpochNumber, job: JobId, work: UnitOfWork) -> dict[Address, BaseUnits]:
    """What `epoch` adds to what `job` paid each account."""
    standing = await work[EpochRow].where(state=("proposed", "final"), order="-epoch")
    before = [row.epoch for row in standing if row.epoch < epoch][:1]
    then = await _paid_by(job, before[0], work) if before else {}
    now = await _paid_by(job, epoch, work)
    added = {each: BaseUnits(amount - then.get(each, 0)) for each, amount in now.items()}
    return {each: amount for each, amount in added.items() if amount}


async def _paid_by(job: JobId, epoch: EpochNumber, work: UnitOfWork) -> Mapping[Address, int]:
    rows = await work[EpochLeafRow].where(epoch=epoch, job=job)
    return {row.account: row.cumulative for row in rows}


async def _newest(work: UnitOfWork) -> EpochRow | None:
    rows = await work[EpochRow].where(order="-epoch", limit=1)
    return rows[0] if rows else None


async def _due_jobs(
    newest: EpochRow | None, now: UnixMillis, rhythm: Rhythm, work: UnitOfWork
) -> list[JobRow]:
    """Jobs that may be settled now: all in the first epoch of a period, later those that ended.

    Periods are fixed: counted from the newest epoch, jobs that keep ending would put them off.
    """
    states = set(_SETTLES)
    period = rhythm.epoch_millis
    if newest is not None and now // period == newest.planned_at // period:
        states.remove(JobState.RUNNING.value)
    return await work[JobRow].where(state=tuple(sorted(states)), settled=False)


async def _statements(
    row: JobRow, previous: EpochSettlement, rhythm: Rhythm, work: UnitOfWork, *, is_final: bool
) -> list[Statement]:
    cap = BaseUnits(min(row.epoch_cap, rhythm.max_epoch_cap))
    debited = previous.debited(row.job)
    due = await payable_due(row, work)
    if row.state == JobState.REFUNDED.value and debited >= due:
        await work[JobRow].put(replace(row, settled=True))
        return []
    if is_final:  # the seal that the close shows is the one that counts
        shown = await _anchored(await _shown(row, work), work)
        return [_of_closed(seal, cap, due, debited) for seal in shown]
    seals = await work[SealRow].where(job=row.job, order="-step", limit=MAX_SEALS_OFFERED)
    return [_open(seal, cap) for seal in await _anchored(seals, work) if seal.vested > debited]


async def _anchored(seals: Sequence[SealRow], work: UnitOfWork) -> list[SealRow]:
    """Those that a batch on chain holds: the others are no receipts yet."""
    roots = tuple({seal.batch for seal in seals if seal.batch is not None})
    batches = await work[BatchRow].where(root=roots) if roots else []
    on_chain = {batch.root for batch in batches if batch.block is not None}
    return [seal for seal in seals if seal.batch in on_chain]


async def _shown(row: JobRow, work: UnitOfWork) -> list[SealRow]:
    """The seal that the close on chain shows; none if nobody sent it to us, or another like it."""
    step, earned = await shown_by_close(row, work)
    seal = await work[SealRow].get(row.job, step)
    return [seal] if seal is not None and seal.earned == earned else []


def _of_closed(seal: SealRow, cap: BaseUnits, due: BaseUnits, debited: BaseUnits) -> Statement:
    """By a `last` seal in one piece; else, or if its close found less due, by what that found.

    A coordinator may have closed its job by another seal of the same step.
    """
    is_whole = seal.last and seal.vested <= due and seal.vested - debited <= cap
    return _open(seal, cap) if is_whole else _closed(seal, cap, due)


def _open(seal: SealRow, cap: BaseUnits) -> SealStatement:
    return SealStatement(seal.job, seal.digest, StepNumber(seal.step), decode_pay(seal.pay), cap)


def _closed(seal: SealRow, cap: BaseUnits, due: BaseUnits) -> ClosedStatement:
    pay = decode_pay(seal.pay)
    step = StepNumber(seal.step)
    return ClosedStatement(seal.job, seal.digest, step, pay, cap, due, last=seal.last)


async def _chosen(
    settlement: EpochSettlement, now: UnixMillis, refused: RefusedDebits, work: UnitOfWork
) -> frozenset[JobId]:
    """Jobs whose debits are not held back, as many as fit; who waited longest comes first."""
    jobs = [row.job for row in _debits(settlement) if not refused.holds(row, now)]
    if len(jobs) > MAX_DEBITS:
        known = await work[DebitRow].where(job=tuple(jobs), order="epoch")
        last = {row.job: row.epoch for row in known}
        jobs = sorted(jobs, key=lambda job: (last.get(job, 0), job))[:MAX_DEBITS]
    return frozenset(jobs)


def _debits(settlement: EpochSettlement) -> list[DebitRow]:
    return [
        DebitRow(
            settlement.epoch,
            debit.job,
            debit.amount,
            int(debit.statement.step),
            debit.statement.seal,
            signed=isinstance(debit.statement, SealStatement),
        )
        for debit in settlement.debits
    ]


async def _store(settlement: EpochSettlement, now: UnixMillis, work: UnitOfWork) -> EpochRow:
    root = settlement.root
    row = EpochRow(settlement.epoch, "planned", root.hash, root.sum, now)
    await work[EpochRow].add(row)
    await work[DebitRow].add_all(_debits(settlement))
    leaves = [
        EpochLeafRow(row.epoch, account.account, job, cumulative)
        for account in settlement.accounts
        for job, cumulative in account.jobs
    ]
    for start in range(0, len(leaves), LEAVES_AT_ONCE):
        await work[EpochLeafRow].add_all(leaves[start : start + LEAVES_AT_ONCE])
    _remember(settlement)
    await work.emit("epoch", row.epoch.to_bytes(8, "big"))
    tell_of_epoch(row, now, work)
    return row


def tell_of_epoch(row: EpochRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Tell who watches the market in which state the epoch is now."""
    event = EpochEvent(
        at=now,
        epoch=row.epoch,
        state=cast(EpochState, row.state),
        root=row.root,
        sum=row.sum,
        window_ends=row.window_ends,
        transaction=row.transaction,
    )
    tell_market(event, work)


async def _propose(
    row: EpochRow, now: UnixMillis, work: UnitOfWork, chain: Chain, refused: RefusedDebits
) -> None:
    async with work:
        settlement = await load_settlement(work, row.epoch)
        debits = await work[DebitRow].where(epoch=row.epoch, order="job")
        orders = [await _order(debit, work) for debit in debits]
    if settlement.root.hash != row.root or row.root == ZERO_DIGEST:
        raise InvariantBroken(f"epoch {row.epoch}: its leaves do not make its root")
    _remember(settlement)
    try:
        transaction = await chain.propose(row.epoch, settlement.root, orders)
    except ContractRefused:
        for debit in await find_refused(row, debits, orders, chain):
            refused.hold(debit, now)
        await _drop(row, work, chain)
        return
    async with work:
        held = await work[EpochRow].lock(row.epoch)
        if held is not None and held.transaction is None:
            await work[EpochRow].put(replace(held, transaction=transaction))


async def _order(debit: DebitRow, work: UnitOfWork) -> PayOrder:
    job = await work[JobRow].get(debit.job)
    seal = await work[SealRow].get(debit.job, debit.step)
    if job is None or seal is None:
        raise InvariantBroken(f"epoch {debit.epoch} debits a job without its seal")
    return PayOrder(spec_of(job).message, seal_of(seal) if debit.signed else None)


async def _drop(row: EpochRow, work: UnitOfWork, chain: Chain) -> None:
    """Forget a plan that the chain refused, unless it has it already."""
    if (await chain.newest_epoch()).number >= row.epoch:
        return  # it was posted; the event is on its way
    async with work:
        held = await work[EpochRow].lock(row.epoch)
        if held is None or held.state != "planned":
            return
        for debit in await work[DebitRow].where(epoch=row.epoch):
            await work[DebitRow].remove(debit.epoch, debit.job)
        for leaf in await work[EpochLeafRow].where(epoch=row.epoch):
            await work[EpochLeafRow].remove(leaf.epoch, leaf.account, leaf.job)
        await work[EpochRow].remove(row.epoch)


async def _finalize(row: EpochRow, chain: Chain) -> None:
    if row.window_ends is None or not await chain.is_over(row.window_ends):
        return
    current = await chain.newest_epoch()
    if current.number == row.epoch and not current.booked:
        await chain.finalize(row.epoch)
