"""What one event of our contracts changes in rows and ledger, inside the caller's transaction."""

from dataclasses import replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain import ledger
from market.domain.jobs import CloseRequested, RefundPaid
from market.service.activate import activate, backs
from market.service.audit_bonds import note_reserved
from market.service.booking import balances_of, book_event
from market.service.closes import with_close
from market.service.coding import wide
from market.service.fund_jobs import note_deposits
from market.service.life import happen
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import AuditBondRow, BatchRow, DebitRow, EpochRow, JobRow, LeaseRow
from market.service.settle_epoch import parts_of
from market.service.slash_events import job_of_case, slash_announced, slash_ended
from market.service.tell_of_chain import (
    tell_of_batch,
    tell_of_claim,
    tell_of_deposit,
    tell_of_refund,
    tell_of_settlement,
)


async def apply_event(
    event: ChainEvent, name: str, now: UnixMillis, work: UnitOfWork, anchorer: Address
) -> None:
    """Change rows as `event` says, and book its entries under `name`.

    Raises:
        InvariantBroken: the event contradicts what we sent, or the ledger.
    """
    match event.event:
        case "JobOpened" | "ToppedUp" | "Debited" | "Restored" | "Refunded":
            await _money(event, name, now, work)
        case "CloseRequested" | "KeptOpen":
            await _closing(event, now, work)
        case "Staked" | "UnbondRequested" | "Withdrawn" | "Reserved" | "ReservationReleased":
            await _stake(event, name, now, work)
        case "SlashAnnounced":
            await slash_announced(event, now, work)
        case "SlashEnded":
            await _slashed(event, name, now, work)
        case "Anchored" | "Recorded" if event.args["caller"] == anchorer:
            await _anchored(event, now, work)
        case "EpochPosted" | "EpochFinal" | "EpochRejected":
            await _epoch(event, now, work)
        case "Claimed":
            await tell_of_claim(event, now, work)
            entries = ledger.claimed(_account(event), _amount(event))
            await book_event(name, entries, work, overdraft=True)


def _job(event: ChainEvent) -> JobId:
    return JobId(_bytes(event, "job"))


def _account(event: ChainEvent) -> Address:
    return Address(_bytes(event, "account"))


def _amount(event: ChainEvent, name: str = "amount") -> BaseUnits:
    return BaseUnits(wide(event.args[name]))


def _bytes(event: ChainEvent, name: str) -> bytes:
    value = event.args[name]
    if not isinstance(value, bytes):
        raise InvariantBroken(f"{event.event}: {name} is {value!r}")
    return value


async def _money(event: ChainEvent, name: str, now: UnixMillis, work: UnitOfWork) -> None:
    job, amount = _job(event), _amount(event)
    row = await work[JobRow].lock(job)
    match event.event:
        case "JobOpened" | "ToppedUp":
            await book_event(name, ledger.deposit(job, amount), work)
            if row:
                tell_of_deposit(row.job, event, now, work)
                await note_deposits(row, now, work)
        case "Refunded":
            await book_event(name, ledger.refund(job, amount), work, overdraft=True)
            if row:
                tell_of_refund(row.job, event, now, work)
                row = await happen(row, RefundPaid(), now, work)
                await work[JobRow].put(replace(row, refund_shown=False))  # mined again: due again
        case "Debited":
            await _debited(job, EpochNumber(wide(event.args["epoch"])), amount, name, work)
        case "Restored":
            parts = await parts_of(EpochNumber(wide(event.args["epoch"])), job, work)
            await book_event(name, ledger.restored(job, parts), work, overdraft=True)


async def _debited(
    job: JobId, epoch: EpochNumber, amount: BaseUnits, name: str, work: UnitOfWork
) -> None:
    parts = await parts_of(epoch, job, work)
    accounts = [ledger.vested(job, account) for account in parts]
    entries = ledger.debit(job, amount, parts, await balances_of(accounts, work))
    await book_event(name, entries, work, overdraft=True)


async def _closing(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    row = await work[JobRow].lock(_job(event))
    if row is None:
        return
    row = await with_close(row, work)
    await work[JobRow].put(row)
    # A silent one counts when its window ends.
    if event.event == "CloseRequested" and not event.args["silence"]:
        await happen(row, CloseRequested(), now, work)


async def _stake(event: ChainEvent, name: str, now: UnixMillis, work: UnitOfWork) -> None:
    account, amount = _account(event), _amount(event)
    match event.event:
        case "Staked":
            entries = ledger.staked(account, amount)
        case "UnbondRequested":
            entries = ledger.unbonded(account, amount)
        case "Withdrawn":
            entries = ledger.withdrawn(account, amount)
        case "Reserved":
            entries = ledger.stake_reserved(_job(event), account, amount)
            await _reserved(event, now, work)
        case _:
            entries = ledger.stake_released(_job(event), account, amount)
    await book_event(name, entries, work, overdraft=True)


async def _reserved(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    key = _bytes(event, "sessionKey")
    for lease in await work[LeaseRow].where(session_key=key, job=_job(event)):
        if backs(event.args, lease):
            await activate(lease.job, lease.lease, now, work)
    for bond in await work[AuditBondRow].where(session_key=key, job=_job(event)):
        if backs(event.args, bond):
            await note_reserved(bond, work)


async def _slashed(event: ChainEvent, name: str, now: UnixMillis, work: UnitOfWork) -> None:
    account, job = _account(event), await job_of_case(wide(event.args["id"]), work)
    parts = ("restitution", "bounty", "burned")
    taken = BaseUnits(sum(_amount(event, part) for part in parts))
    owned = (ledger.reserved(job, account), ledger.stake(account), ledger.unbonding(account))
    entries = ledger.slashed_stake(
        job, account, taken, _amount(event, "burned"), await balances_of(owned, work)
    )
    await book_event(name, entries, work, overdraft=True)
    await slash_ended(event, now, work)


async def _anchored(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    for batch in await work[BatchRow].where(number=wide(event.args["index"]), lock=True):
        if event.event == "Recorded":
            batch = replace(batch, coin=Digest(_bytes(event, "coin")))
        elif batch.root != event.args["root"]:
            raise InvariantBroken(f"batch {batch.number} is anchored with another root")
        else:
            batch = replace(batch, block=event.block, transaction=event.transaction)
        await work[BatchRow].put(batch)
        await tell_of_batch(batch, now, work)


async def _epoch(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    epoch = EpochNumber(wide(event.args["epoch"]))
    row = await work[EpochRow].lock(epoch)
    if row is None:
        raise InvariantBroken(f"epoch {epoch} was posted and is not ours")
    match event.event:
        case "EpochPosted":
            if row.root != event.args["root"]:
                raise InvariantBroken(f"epoch {epoch} was posted with another root")
            ends = UnixSeconds(wide(event.args["windowEnds"]))
            row = replace(row, state="proposed", window_ends=ends, transaction=event.transaction)
        case "EpochFinal":
            row = replace(row, state="final")
        case _:
            row = replace(row, state="rejected")
            await _unsettled(epoch, work)
    await work[EpochRow].put(row)
    await work.emit("epoch", epoch.to_bytes(8, "big"))
    await tell_of_settlement(row, now, work)


async def _unsettled(epoch: EpochNumber, work: UnitOfWork) -> None:
    for debit in await work[DebitRow].where(epoch=epoch):
        if (row := await work[JobRow].lock(debit.job)) and row.settled:
            await work[JobRow].put(replace(row, settled=False))
