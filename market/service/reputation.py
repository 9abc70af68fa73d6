"""Reputations: what seals settle and what leases come to is counted, each once.

The rows are sums of `market.domain.reputation.Outcome`s. Those of audits come with the seals of a
job, in order, from its sealed messages alone; those of leases from the market's own rows, in the
transaction that changes the lease. The caller is inside a transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from contracts.governance.record import JobRecord
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId, PeerId, StepNumber
from market.bodies.offers import ReputationView
from market.domain.reputation import SCALE, Audited, Outcome, Reputation, fold
from market.service.ports import UnitOfWork
from market.service.rows import CountedRow, ReputationRow
from verification.docket import Docket
from verification.draws.cases import Ruling, What


async def note_outcomes(record: JobRecord, work: UnitOfWork) -> bool:
    """Count what the newest seal of a job has settled; False if it was counted before."""
    if not isinstance(record.checking, Docket):
        return False  # nobody checks this job
    accounts = {peer: lease.account for peer, lease in record.pay_leases().items()}
    outcomes = outcomes_of(record.checking.rulings, accounts)
    return await count_outcomes(record.job, record.step, outcomes, work)


def outcomes_of(
    rulings: Iterable[Ruling], accounts: Mapping[PeerId, Address]
) -> tuple[Audited, ...]:
    """What rulings say of accounts: of whom they are about, and of the auditors that were heard.

    A case that is open, or ends unrepeated, says nothing of anybody's honesty.
    """
    found: list[Audited] = []
    for ruling in rulings:
        about, heard = _ABOUT.get(ruling.what), _heard(ruling)
        of = [(ruling.peer, about)] if about is not None else []
        of += [(auditor, Outcome.KEPT) for auditor in heard]
        found += [Audited(accounts[peer], ruling.step, outcome) for peer, outcome in of]
    return tuple(found)


_ABOUT: Mapping[What, Outcome] = {
    "settled": Outcome.MATCH,
    "convicted": Outcome.MISMATCH,
    "missing": Outcome.MISSED,
    "missed": Outcome.MISSED,
}


def _heard(ruling: Ruling) -> tuple[PeerId, ...]:
    """Auditors that this ruling is the first to count."""
    match ruling.what:
        case "settled" | "convicted" | "missing" | "unrepeated":
            return ruling.by
        case "slashable":
            return ruling.by[-1:]  # the others were heard before the conviction
    return ()


async def count_outcomes(
    job: JobId, step: StepNumber, outcomes: Sequence[Audited], work: UnitOfWork
) -> bool:
    """Count what the seal of `step` settled; False if it was counted before.

    Steps come in ascending order; those in which nothing was settled may be left out.
    """
    if any(each.step != step for each in outcomes):
        raise InvariantBroken(f"outcomes of another step than {step}")
    counted = await work[CountedRow].lock(job)
    if counted is not None and counted.step >= step:
        return False
    await work[CountedRow].put(CountedRow(job, step))
    by_account: dict[Address, list[Audited]] = {}
    for each in outcomes:
        by_account.setdefault(each.account, []).append(each)
    await work[ReputationRow].put_all(
        [await _added(account, by_account[account], work) for account in sorted(by_account)]
    )
    return True


async def note_duty(account: Address, outcome: Outcome, work: UnitOfWork) -> None:
    """Count a duty outside a job's history: a lease that was kept to its end, or lost."""
    row = await _added(account, [Audited(account, StepNumber(0), outcome)], work)
    await work[ReputationRow].put(row)


async def _added(account: Address, outcomes: Iterable[Audited], work: UnitOfWork) -> ReputationRow:
    """The account's row, which is held from now on, with these outcomes in it."""
    row = await work[ReputationRow].lock(account)
    found = fold(_reputation(row), outcomes)
    return ReputationRow(account, **asdict(found))


async def reputations_of(
    accounts: Iterable[Address], work: UnitOfWork
) -> dict[Address, Reputation]:
    """The reputation of each account; strangers have the one that nothing is known of."""
    names = tuple(set(accounts))
    rows = await work[ReputationRow].where(account=names) if names else []
    known = {row.account: _reputation(row) for row in rows}
    return {account: known.get(account, Reputation()) for account in names}


def reputation_view(reputation: Reputation) -> ReputationView:
    """A reputation with its factors."""
    mean = reputation.mean
    return ReputationView(
        honesty=reputation.bound,
        honesty_mean=SCALE * mean.numerator // mean.denominator,
        matches=reputation.matches,
        mismatches=reputation.mismatches,
        liveness=reputation.liveness,
        kept=reputation.kept,
        missed=reputation.missed,
    )


def _reputation(row: ReputationRow | None) -> Reputation:
    if row is None:
        return Reputation()
    return Reputation(row.matches, row.mismatches, row.kept, row.missed, row.liveness)
