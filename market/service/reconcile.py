"""Does the ledger say what the chain's logs say? Escrow in = debited + refunded + remaining.

Both sides are as of the cursor, so a difference is a bug of ours or money that moved without an
event, never a delay.
"""

from collections import Counter
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import JobId
from market.domain.ledger import JobTotals, job_totals
from market.service.booking import entries_of_job
from market.service.coding import decode_arguments, wide
from market.service.ports import UnitOfWork
from market.service.rows import BalanceRow, ChainEventRow, JobRow

_MONEY = ("JobOpened", "ToppedUp", "Debited", "Restored", "Refunded")


@dataclass(frozen=True)
class Reconciled:
    """Where a job's money is, by the ledger, and what the logs say instead (empty: the same)."""

    totals: JobTotals
    differences: tuple[str, ...]


async def reconcile_job(job: JobId, work: UnitOfWork) -> Reconciled:
    """Compare one job, inside the caller's transaction."""
    totals = job_totals(job, await entries_of_job(job, work))
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
