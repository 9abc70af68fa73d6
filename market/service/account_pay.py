"""What epochs have paid an account, and which claim paid it out. The caller is in a transaction.

A claim takes all that the newest final root grants, so an epoch is claimed once the account was
paid its sum over all jobs; the claim that did it is the first one by which that was reached.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from market.domain import ledger
from market.domain.earnings import PaidEpoch
from market.service.booking import balances_of
from market.service.ports import UnitOfWork
from market.service.rows import (
    ChainEventRow,
    DebitRow,
    EpochLeafRow,
    EpochRow,
    LeaseRow,
    LedgerEntryRow,
    ListedAuditorRow,
)

STANDING = ("planned", "proposed", "final")
_OF_CHAIN = "chain:"


@dataclass(frozen=True)
class Claims:
    """All that was paid out to an account, claim by claim."""

    events: tuple[str, ...] = ()  # as the ledger names them
    sums: tuple[BaseUnits, ...] = ()  # paid with each claim and those before

    @property
    def paid(self) -> BaseUnits:
        """In total."""
        return self.sums[-1] if self.sums else BaseUnits(0)

    def reached(self, amount: BaseUnits) -> str | None:
        """The claim by which `amount` was paid; None: it was not yet."""
        place = bisect_left(self.sums, amount)
        return self.events[place] if place < len(self.sums) else None


async def jobs_of(account: Address, work: UnitOfWork) -> list[JobId]:
    """Jobs that an account works in, or may audit from outside."""
    leases = await work[LeaseRow].where(account=account)
    listed = await work[ListedAuditorRow].where(account=account)
    return sorted({lease.job for lease in leases} | {entry.job for entry in listed})


async def claims_of(account: Address, work: UnitOfWork) -> Claims:
    """What an account has claimed; what the chain forgot does not count."""
    rows = await work[LedgerEntryRow].where(target=ledger.paid(account), order="sequence")
    booked = [row for row in rows if row.event.startswith(_OF_CHAIN)]
    sums = accumulate(row.amount for row in booked)
    return Claims(tuple(row.event for row in booked), tuple(map(BaseUnits, sums)))


async def claim_transaction(event: str, work: UnitOfWork) -> Digest | None:
    """The transaction of a claim that the ledger names."""
    _, block_hash, log_index = event.split(":")
    rows = await work[ChainEventRow].where(
        block_hash=Digest(bytes.fromhex(block_hash)), log_index=int(log_index)
    )
    return rows[0].transaction if rows else None


async def paid_epochs(job: JobId, account: Address, work: UnitOfWork) -> list[PaidEpoch]:
    """The epochs that debited a job, ascending, with what it had paid the account by then."""
    rows = await _epochs_of(job, STANDING, work)
    numbers = tuple(row.epoch for row in rows)
    if not numbers:
        return []
    leaves = await work[EpochLeafRow].where(epoch=numbers, account=account, job=job)
    until = {leaf.epoch: leaf.cumulative for leaf in leaves}
    final = [row for row in rows if row.state == "final"]
    newest = (await _claimed_until(final, [account], work))[account]
    return [
        _paid_epoch(row, until[row.epoch], newest is not None and row.epoch <= newest)
        for row in rows
        if row.epoch in until
    ]


async def paid_by_job(
    job: JobId, accounts: Sequence[Address] | None, work: UnitOfWork
) -> dict[Address, tuple[BaseUnits, BaseUnits]]:
    """What epochs on chain took from a job for each account, or all, and what of it is claimed."""
    rows = await _epochs_of(job, STANDING[1:], work)
    if not rows:
        return {}
    newest = await _leaves(job, rows[-1].epoch, accounts, work)
    until = await _claimed_until([row for row in rows if row.state == "final"], newest, work)
    claimed: dict[Address, BaseUnits] = {}
    for epoch in sorted({epoch for epoch in until.values() if epoch is not None}):
        of = [account for account in newest if until[account] == epoch]
        claimed |= await _leaves(job, epoch, of, work)
    return {
        account: (amount, claimed.get(account, BaseUnits(0))) for account, amount in newest.items()
    }


async def claimed_of(job: JobId, work: UnitOfWork) -> BaseUnits:
    """What of a job's debits was claimed, by everybody."""
    paid = await paid_by_job(job, None, work)
    return BaseUnits(sum(claimed for _, claimed in paid.values()))


async def _leaves(
    job: JobId, epoch: EpochNumber, accounts: Sequence[Address] | None, work: UnitOfWork
) -> dict[Address, BaseUnits]:
    """What a job had paid each of these accounts, or all, up to an epoch."""
    of: dict[str, Any] = {} if accounts is None else {"account": tuple(accounts)}
    leaves = await work[EpochLeafRow].where(epoch=epoch, job=job, **of)
    return {leaf.account: leaf.cumulative for leaf in leaves}


async def _epochs_of(job: JobId, states: Sequence[str], work: UnitOfWork) -> list[EpochRow]:
    """The epochs that debited a job, ascending."""
    debits = await work[DebitRow].where(job=job)
    numbers = tuple(debit.epoch for debit in debits)
    if not numbers:
        return []
    return await work[EpochRow].where(epoch=numbers, state=tuple(states), order="epoch")


async def debited_of(job: JobId, work: UnitOfWork) -> BaseUnits:
    """What epochs that stand on chain have taken from a job."""
    debits = await work[DebitRow].where(job=job)
    standing = {row.epoch for row in await _epochs_of(job, STANDING[1:], work)}
    return BaseUnits(sum(debit.amount for debit in debits if debit.epoch in standing))


async def epoch_sums(
    account: Address, epochs: Sequence[EpochNumber], work: UnitOfWork
) -> dict[EpochNumber, BaseUnits]:
    """What each epoch's root grants an account over all jobs."""
    sums = await _sums([account], epochs, work)
    return {epoch: amount for (_, epoch), amount in sums.items()}


async def _sums(
    accounts: Collection[Address], epochs: Collection[EpochNumber], work: UnitOfWork
) -> dict[tuple[Address, EpochNumber], BaseUnits]:
    sums: Counter[tuple[Address, EpochNumber]] = Counter()
    for leaf in await work[EpochLeafRow].where(account=tuple(accounts), epoch=tuple(epochs)):
        sums[leaf.account, leaf.epoch] += leaf.cumulative
    return {each: BaseUnits(amount) for each, amount in sums.items()}


async def _claimed_until(
    final: Sequence[EpochRow], accounts: Collection[Address], work: UnitOfWork
) -> dict[Address, EpochNumber | None]:
    """The last of `final` epochs, which ascend, that each account has claimed.

    Sums never fall, so all accounts are searched for together, by halves.
    """
    names = [ledger.paid(account) for account in accounts]
    paid = await balances_of(names, work)
    low = dict.fromkeys(accounts, 0)  # of `final`, that many are claimed
    high = dict.fromkeys(accounts, len(final))
    while open_ones := [account for account in accounts if low[account] < high[account]]:
        middle = {account: (low[account] + high[account]) // 2 for account in open_ones}
        epochs = {final[place].epoch for place in middle.values()}
        sums = await _sums(open_ones, epochs, work)
        for account, place in middle.items():
            granted = sums.get((account, final[place].epoch), 0)
            if granted <= paid.get(ledger.paid(account), 0):
                low[account] = place + 1
            else:
                high[account] = place
    return {account: final[place - 1].epoch if place else None for account, place in low.items()}


def _paid_epoch(row: EpochRow, until: BaseUnits, is_claimed: bool) -> PaidEpoch:
    state = cast(Literal["planned", "proposed", "final"], row.state)
    return PaidEpoch(
        row.epoch, row.root, state, row.transaction, row.window_ends, until, is_claimed
    )
