"""The one way into the ledger: entries of an event, booked once, with the balances beside them.

The row of account `outside` is held first, so bookings happen one after the other. The caller is
inside a transaction; whoever also changes jobs holds their rows before the ledger.
"""

from collections.abc import Sequence

from contracts.terms.amounts import BaseUnits
from market.domain.ledger import OUTSIDE, Entry, book
from market.service.ports import UnitOfWork
from market.service.rows import BalanceRow, LedgerEntryRow


async def hold_ledger(work: UnitOfWork) -> None:
    """Wait for the ledger and hold it until the transaction ends."""
    if await work[BalanceRow].lock(OUTSIDE) is None:
        await work[BalanceRow].add(BalanceRow(OUTSIDE, BaseUnits(0)))


async def balances_of(accounts: Sequence[str], work: UnitOfWork) -> dict[str, int]:
    """Balances of `accounts`; those without entries are left out."""
    rows = await work[BalanceRow].where(account=tuple(accounts)) if accounts else []
    return {row.account: row.amount for row in rows}


async def book_event(
    event: str, entries: Sequence[Entry], work: UnitOfWork, *, overdraft: bool = False
) -> bool:
    """Book the entries of `event`; False if it was booked before.

    Raises:
        InvariantBroken: see `market.domain.ledger.book`.
    """
    await hold_ledger(work)
    if not entries or await work[LedgerEntryRow].where(event=event, limit=1):
        return False
    touched = sorted({name for each in entries for name in (each.source, each.target)})
    before = await balances_of(touched, work)
    after = book(before, entries, overdraft=overdraft)
    lines = [_row(event, line, entry) for line, entry in enumerate(entries)]
    await work[LedgerEntryRow].add_all(lines)
    changed = [
        BalanceRow(account, BaseUnits(amount))
        for account, amount in sorted(after.items())
        if before.get(account) != amount
    ]
    await work[BalanceRow].put_all(changed)
    return True


def entry_of(row: LedgerEntryRow) -> Entry:
    """What a row says."""
    return Entry(row.source, row.target, row.amount, row.job)


def _row(event: str, line: int, entry: Entry) -> LedgerEntryRow:
    return LedgerEntryRow(
        0, event, line, entry.source, entry.target, BaseUnits(entry.amount), entry.job
    )
