"""Does the ledger say what the chain's logs say? Escrow in = debited + refunded + remaining.

Both sides are as of the cursor, so a difference is a bug of ours or money that moved without an
event, never a delay.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import JobId
from market.domain.ledger import JobFlows, JobTotals
from market.service.booking import entry_of
from market.service.coding import decode_arguments, wide
from market.service.ports import UnitOfWork
from market.service.rows import BalanceRow, ChainEventRow, JobRow, LedgerEntryRow

MAX_REMEMBERED = 256
_MONEY = ("JobOpened", "ToppedUp", "Debited", "Restored", "Refunded")


@dataclass(frozen=True)
class Reconciled:
    """Where a job's money is, by the ledger, and what the logs say instead (empty: the same)."""

    totals: JobTotals
    differences: tuple[str, ...]


class Booked:
    """Where the money of jobs is, by the ledger; what was read is remembered.

    Entries are booked one after the other and never change, so only those beyond the last one that
    was read are read. The least recently used job is forgotten first.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[JobId, tuple[int, JobFlows]] = OrderedDict()

    async def totals(self, job: JobId, work: UnitOfWork) -> JobTotals:
        """Of one job, inside the caller's transaction.

        Raises:
            InvariantBroken: the parts are not what was escrowed.
        """
        last, flows = self._known.get(job, (0, JobFlows(job)))
        rows = await work[LedgerEntryRow].where(order="sequence", after=last, job=job)
        last, flows = self._known.get(job, (last, flows))  # somebody else may have come further
        new = [row for row in rows if row.sequence > last]
        flows.take(map(entry_of, new))
        self._known[job] = (new[-1].sequence if new else last, flows)
        self._known.move_to_end(job)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return flows.totals()


async def reconcile_job(job: JobId, work: UnitOfWork, booked: Booked | None = None) -> Reconciled:
    """Compare one job, inside the caller's transaction; all of the ledger without `booked`."""
    booked = booked or Booked()
    found = await _compare(job, work, booked)
    if found.differences:  # or an event came between two statements, which see what is committed
        found = await _compare(job, work, booked)
    return found


async def _compare(job: JobId, work: UnitOfWork, booked: Booked) -> Reconciled:
    totals = await booked.totals(job, work)
    logged: Counter[str] = Counter()
    for event in await work[ChainEventRow].where(job=job, event=_MONEY):
        logged[event.event] += wide(decode_arguments(event.args)["amount"])
    escrowed = logged["JobOpened"] + logged["ToppedUp"]
    debited = logged["Debited"] - logged["Restored"]
    pairs = {
        "escrowed": (totals.escrowed, escrowed),
        "debited": (totals.debited, debited),
        "refunded": (totals.refunded, logged["Refunded"]),
        "remaining": (totals.remaining, escrowed - debited - logged["Refunded"]),
    }
    different = (f"{name}: ledger {a}, chain {b}" for name, (a, b) in pairs.items() if a != b)
    return Reconciled(totals, tuple(different))


async def reconcile(work: UnitOfWork) -> int:
    """Compare every job that is not settled, and all claims; returns how many jobs.

    Raises:
        InvariantBroken: something differs.
    """
    async with work:
        rows = await work[JobRow].where(settled=False)
        for row in rows:
            found = await reconcile_job(row.job, work)
            if found.differences:
                raise InvariantBroken(f"job {row.job.hex()}: {'; '.join(found.differences)}")
        await _check_claims(work)
    return len(rows)


async def _check_claims(work: UnitOfWork) -> None:
    claims = await work[ChainEventRow].where(event="Claimed")
    logged = sum(wide(decode_arguments(event.args)["amount"]) for event in claims)
    balances = await work[BalanceRow].where()
    booked = BaseUnits(sum(row.amount for row in balances if row.account.startswith("paid:")))
    if booked != logged:
        raise InvariantBroken(f"paid: ledger {booked}, chain {logged}")
    if total := sum(row.amount for row in balances):
        raise InvariantBroken(f"the ledger does not balance: {total}")
