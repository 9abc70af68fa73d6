"""Reputations: what seals settle and what leases come to is counted, each once, as it is stored.

The rows are sums of `market.domain.reputation.Outcome`s. Those of audits come with the seals of a
job, in order, from its sealed messages alone; those of leases from the market's own rows, in the
transaction that changes the lease. The caller is inside a transaction.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from contracts.governance.record import JobRecord
from contracts.terms.ids import Address, PeerId
from market.bodies.offers import ReputationView
from market.domain.reputation import SCALE, Outcome, Reputation
from market.service.ports import UnitOfWork
from market.service.rows import ReputationRow
from verification.docket import Docket
from verification.draws.cases import Ruling, What


async def note_outcomes(record: JobRecord, work: UnitOfWork) -> None:
    """Count what the newest seal of a job has settled, once."""
    if not isinstance(record.checking, Docket):
        return  # nobody checks this job
    accounts = {peer: lease.account for peer, lease in record.pay_leases().items()}
    outcomes = [
        (accounts[peer], outcome)
        for ruling in record.checking.rulings
        for peer, outcome in outcomes_of(ruling)
    ]
    await count_outcomes(outcomes, work)


def outcomes_of(ruling: Ruling) -> Iterator[tuple[PeerId, Outcome]]:
    """What a ruling says of whom it is about, and of the auditors that were heard.

    A case that is open, or ends unrepeated, says nothing of anybody's honesty.
    """
    if (about := _ABOUT.get(ruling.what)) is not None:
        yield ruling.peer, about
    for auditor in _heard(ruling):
        yield auditor, Outcome.KEPT


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


async def count_outcomes(outcomes: Iterable[tuple[Address, Outcome]], work: UnitOfWork) -> None:
    """Count outcomes of accounts."""
    by_account: dict[Address, list[Outcome]] = {}
    for account, outcome in outcomes:
        by_account.setdefault(account, []).append(outcome)
    await work[ReputationRow].put_all(
        [await _added(account, by_account[account], work) for account in sorted(by_account)]
    )


async def note_duty(account: Address, outcome: Outcome, work: UnitOfWork) -> None:
    """Count a duty outside a job's history: a lease that was kept to its end, or lost."""
    await count_outcomes([(account, outcome)], work)


async def _added(account: Address, outcomes: Iterable[Outcome], work: UnitOfWork) -> ReputationRow:
    """The account's row, which is held from now on, with these outcomes in it."""
    reputation = _reputation(await work[ReputationRow].lock(account))
    for outcome in outcomes:
        reputation = reputation.after(outcome)
    return ReputationRow(account, **asdict(reputation))


async def reputations_of(
    accounts: Iterable[Address], work: UnitOfWork
) -> dict[Address, Reputation]:
    """The reputation of each account; strangers have the one that nothing is known of."""
    names = tuple(set(accounts))
    rows = await work[ReputationRow].where(account=names)
    known = {row.account: _reputation(row) for row in rows}
    return {account: known.get(account, Reputation()) for account in names}


def reputation_view(reputation: Reputation) -> ReputationView:
    """A reputation with its factors."""
    mean = reputation.mean
    mean_1e4 = SCALE * mean.numerator // mean.denominator
    return ReputationView.of(reputation, honesty=reputation.bound, honesty_mean=mean_1e4)


def _reputation(row: ReputationRow | None) -> Reputation:
    if row is None:
        return Reputation()
    return Reputation(row.matches, row.mismatches, row.kept, row.missed, row.liveness)
