"""What epochs have paid an account, and which claim paid it out. The caller is in a transaction.

A claim takes all that the newest final root grants, so an epoch is claimed once the account was
paid its sum over all jobs; the claim that did it is the first one by which that was reached.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from market.domain import ledger
from market.domain.earnings import PaidEpoch
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


async def paid_epochs(
    job: JobId, account: Address, claims: Claims, work: UnitOfWork
) -> list[PaidEpoch]:
    """The epochs that debited a job, ascending, with what it had paid the account by then."""
    rows = await _epochs_of(job, STANDING, work)
    numbers = tuple(row.epoch for row in rows)
    if not numbers:
        return []
    leaves = await work[EpochLeafRow].where(epoch=numbers, account=account, job=job)
    until = {leaf.epoch: leaf.cumulative for leaf in leaves}
    is_claimed = await _claimed(
        [row for row in rows if row.state == "final"], account, claims, work
    )
    return [_paid_epoch(row, until[row.epoch], row.epoch in is_claimed)
            for row in rows if row.epoch in until]  # fmt: skip


async def paid_by_job(
    job: JobId, accounts: Sequence[Address], work: UnitOfWork
) -> dict[Address, tuple[BaseUnits, BaseUnits]]:
    """What epochs on chain took from a job for each account, and what of it is claimed."""
    rows = await _epochs_of(job, STANDING[1:], work)
    if not rows or not accounts:
        return {}
    leaves = await work[EpochLeafRow].where(epoch=rows[-1].epoch, account=tuple(accounts), job=job)
    debited = {leaf.account: leaf.cumulative for leaf in leaves}
    found = {}
    for account, amount in debited.items():
        epochs = await paid_epochs(job, account, await claims_of(account, work), work)
        claimed = max((each.until for each in epochs if each.is_claimed), default=BaseUnits(0))
        found[account] = amount, claimed
    return found


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
    sums: Counter[EpochNumber] = Counter()
    for leaf in await work[EpochLeafRow].where(account=account, epoch=tuple(epochs)):
        sums[leaf.epoch] += leaf.cumulative
    return {epoch: BaseUnits(amount) for epoch, amount in sums.items()}


async def _claimed(
    final: Sequence[EpochRow], account: Address, claims: Claims, work: UnitOfWork
) -> set[EpochNumber]:
    """Those of `final` epochs, which ascend, that the account has claimed.

    Sums never fall, so a search that asks for a few of them is enough.
    """
    low, high = 0, len(final)
    while low < high:
        middle = (low + high) // 2
        epoch = final[middle].epoch
        granted = (await epoch_sums(account, [epoch], work)).get(epoch, BaseUnits(0))
        if granted <= claims.paid:
            low = middle + 1
        else:
            high = middle
    return {row.epoch for row in final[:low]}


def _paid_epoch(row: EpochRow, until: BaseUnits, is_claimed: bool) -> PaidEpoch:
    state = cast(Literal["planned", "proposed", "final"], row.state)
    return PaidEpoch(
        row.epoch, row.root, state, row.transaction, row.window_ends, until, is_claimed
    )
