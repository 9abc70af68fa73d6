"""What people see of the chain's events: deposits, anchors, coins, epochs, claims, refunds.

The caller is in the transaction that applies the event, after the rows that it changes but for the
ledger's entries of a claim, and calls each once for an event. Amounts are of the one job.
"""

from collections.abc import Mapping
from typing import cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, EpochNumber, JobId, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import (
    AnchoredEvent,
    ClaimedEvent,
    CoinEvent,
    DepositedEvent,
    RefundedEvent,
    SettledEvent,
)
from market.bodies.settlement import EpochState
from market.domain import ledger
from market.service.booking import balances_of
from market.service.coding import wide
from market.service.feeds import tell_job
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, DebitRow, EpochLeafRow, EpochRow
from market.service.settle_epoch import tell_of_epoch


def tell_of_deposit(job: JobId, event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """Somebody put tokens into the job's escrow."""
    told = DepositedEvent(at=now, amount=_amount(event), transaction=event.transaction)
    tell_job(job, told, work)


def tell_of_refund(job: JobId, event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """The poster got the rest back."""
    told = RefundedEvent(at=now, amount=_amount(event), transaction=event.transaction)
    tell_job(job, told, work)


async def tell_of_batch(batch: BatchRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Seals are on chain, or, when the batch has its coin, what draws from them."""
    steps: dict[JobId, list[StepNumber]] = {}
    for entry in await work[BatchEntryRow].where(root=batch.root):
        steps.setdefault(entry.job, []).append(StepNumber(entry.step))
    for job in sorted(steps):
        tell_job(job, _of_batch(batch, tuple(sorted(steps[job])), now), work)


def _of_batch(
    batch: BatchRow, steps: tuple[StepNumber, ...], now: UnixMillis
) -> AnchoredEvent | CoinEvent:
    if batch.coin is not None:
        return CoinEvent(at=now, steps=steps, root=batch.root, coin=batch.coin)
    assert batch.block is not None and batch.transaction is not None  # `Anchored` sets both
    return AnchoredEvent(
        at=now, steps=steps, root=batch.root, block=batch.block, transaction=batch.transaction
    )


async def tell_of_settlement(row: EpochRow, now: UnixMillis, work: UnitOfWork) -> None:
    """An epoch is proposed, final or rejected: the market is told, and every job that it debits."""
    tell_of_epoch(row, now, work)
    for debit in await work[DebitRow].where(epoch=row.epoch):
        event = SettledEvent(
            at=now,
            epoch=row.epoch,
            state=cast(EpochState, row.state),
            amount=debit.amount,
            step=StepNumber(debit.step),
            transaction=row.transaction,
        )
        tell_job(debit.job, event, work)


async def tell_of_claim(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """An account claimed; to be called before the claim is booked."""
    account = Address(cast(bytes, event.args["account"]))
    name = ledger.paid(account)
    before = (await balances_of([name], work)).get(name, 0)
    for job, amount in (await _parts(account, before, before + _amount(event), work)).items():
        told = ClaimedEvent(
            at=now, account=account, amount=BaseUnits(amount), transaction=event.transaction
        )
        tell_job(job, told, work)


async def _parts(
    account: Address, before: int, after: int, work: UnitOfWork
) -> Mapping[JobId, int]:
    """What each job adds to an account's pay between two totals that were claimed.

    A claim takes all that a final root grants, so a total is that of the newest epoch that it
    reaches.
    """
    by_epoch: dict[EpochNumber, dict[JobId, int]] = {}
    for leaf in await work[EpochLeafRow].where(account=account):
        by_epoch.setdefault(leaf.epoch, {})[leaf.job] = leaf.cumulative
    then, now = _reached(by_epoch, before), _reached(by_epoch, after)
    added = {job: now[job] - then.get(job, 0) for job in sorted(now)}
    return {job: amount for job, amount in added.items() if amount > 0}


def _reached(by_epoch: Mapping[EpochNumber, Mapping[JobId, int]], paid: int) -> Mapping[JobId, int]:
    epochs = [epoch for epoch in sorted(by_epoch) if sum(by_epoch[epoch].values()) <= paid]
    return by_epoch[epochs[-1]] if epochs else {}


def _amount(event: ChainEvent) -> BaseUnits:
    return BaseUnits(wide(event.args["amount"]))
