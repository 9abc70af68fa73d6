"""Where every base unit is: a double-entry ledger fed by seals and by the chain's events. Pure.

An entry moves an amount from one account to another; an account is `kind` or `kind:...` in hex:

    outside                  everybody's wallets; the only account that may be negative
    escrow:JOB               deposited and not earned
    earned:JOB:ACCOUNT       sealed, not vested
    vested:JOB:ACCOUNT       vested, in no epoch yet
    due:ACCOUNT              debited by an epoch, not claimed
    paid:ACCOUNT             claimed
    refunded:JOB             back with the poster
    stake:ACCOUNT            free stake; reserved:JOB:ACCOUNT, unbonding:ACCOUNT
    slashed:ACCOUNT          taken by a case and burned; its other parts leave for `outside`

Invariants: the sum over all accounts is zero after every event; no account but `outside` falls
below zero; of every job, escrowed = escrow + earned + vested + debited + refunded; an event is
booked once. An event that the chain forgot is booked back by `reversal`; until it is mined again
accounts may be overdrawn, which reconciliation shows. Units: base units.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId

OUTSIDE = "outside"


@dataclass(frozen=True)
class Entry:
    """`amount` leaves account `source` for account `target`, for the sake of `job` if any."""

    source: str
    target: str
    amount: BaseUnits
    job: JobId | None = None


@dataclass(frozen=True)
class JobTotals:
    """Where a job's money is: the five parts sum to what was escrowed."""

    escrowed: BaseUnits
    unearned: BaseUnits
    earned: BaseUnits  # not vested
    vested: BaseUnits  # not debited
    debited: BaseUnits
    refunded: BaseUnits

    @property
    def remaining(self) -> BaseUnits:
        """What JobEscrow still holds for the job: deposits less debits and refunds."""
        return BaseUnits(self.unearned + self.earned + self.vested)


def escrow(job: JobId) -> str:
    """Account of a job's unearned budget."""
    return f"escrow:{job.hex()}"


def earned(job: JobId, account: Address) -> str:
    """Account of what is sealed and not vested."""
    return f"earned:{job.hex()}:{account.hex()}"


def vested(job: JobId, account: Address) -> str:
    """Account of what has vested and is in no epoch yet."""
    return f"vested:{job.hex()}:{account.hex()}"


def due(account: Address) -> str:
    """Account of what epochs owe."""
    return f"due:{account.hex()}"


def paid(account: Address) -> str:
    """Account of what was claimed."""
    return f"paid:{account.hex()}"


def refunded(job: JobId) -> str:
    """Account of what went back to the poster."""
    return f"refunded:{job.hex()}"


def stake(account: Address) -> str:
    """Account of free stake."""
    return f"stake:{account.hex()}"


def reserved(job: JobId, account: Address) -> str:
    """Account of stake that backs a lease."""
    return f"reserved:{job.hex()}:{account.hex()}"


def unbonding(account: Address) -> str:
    """Account of stake that is on its way back."""
    return f"unbonding:{account.hex()}"


def slashed(account: Address) -> str:
    """Account of stake that was taken and burned."""
    return f"slashed:{account.hex()}"


# --------------------------------------------------------------------- what happened -> entries


def deposit(job: JobId, amount: BaseUnits) -> list[Entry]:
    """JobEscrow received a budget."""
    return _moves((OUTSIDE, escrow(job), amount), job=job)


def refund(job: JobId, amount: BaseUnits) -> list[Entry]:
    """JobEscrow paid the rest back."""
    return _moves((escrow(job), refunded(job), amount), job=job)


def sealed(job: JobId, before: Sequence[PayLeaf], after: Sequence[PayLeaf]) -> list[Entry]:
    """A seal said what is earned and vested in total, where the seal before said `before`.

    What an account has earned may fall: it is frozen or forfeited, and counts for a reserved
    account from then on, or comes back from there. An account without pay has no leaf.

    Raises:
        InvariantBroken: the total falls, or what an account has vested does; governance refuses
            such a seal before it comes here.
    """
    known, said = ({leaf.account: leaf for leaf in leaves} for leaves in (before, after))
    accounts = sorted({*known, *said})
    nothing = PayLeaf(Address(b""), BaseUnits(0), BaseUnits(0))
    pairs = {each: (known.get(each, nothing), said.get(each, nothing)) for each in accounts}
    changes = {each: now.earned - last.earned for each, (last, now) in pairs.items()}
    entries = _earn(job, changes)
    for account, (last, now) in pairs.items():
        if (more := now.vested - last.vested) < 0:
            raise InvariantBroken(f"pay of 0x{account.hex()} falls in job {job.hex()}")
        entries += _moves((earned(job, account), vested(job, account), more), job=job)
    return entries


def _earn(job: JobId, changes: Mapping[Address, int]) -> list[Entry]:
    """What some lose others have earned; the rest was not earned before."""
    lost = [(each, -change) for each, change in changes.items() if change < 0]
    entries: list[Entry] = []
    for account, more in changes.items():
        while more > 0 and lost:
            loser, left = lost.pop()
            moved = min(more, left)
            entries += _moves((earned(job, loser), earned(job, account), moved), job=job)
            more -= moved
            if left > moved:
                lost.append((loser, left - moved))
        entries += _moves((escrow(job), earned(job, account), max(0, more)), job=job)
    if lost:
        raise InvariantBroken(f"what was earned in job {job.hex()} falls")
    return entries


def debit(
    job: JobId, amount: BaseUnits, parts: Mapping[Address, BaseUnits], balances: Mapping[str, int]
) -> list[Entry]:
    """An epoch debited the job, `parts` by account.

    A job that was closed without a last seal owes what is earned: the part that had not vested
    comes from `earned`.

    Raises:
        InvariantBroken: the parts are not the amount.
    """
    if sum(parts.values()) != amount:
        raise InvariantBroken(f"job {job.hex()}: debited {amount}, its parts say {dict(parts)}")
    entries: list[Entry] = []
    for account, part in sorted(parts.items()):
        from_vested = min(part, max(0, balances.get(vested(job, account), 0)))
        entries += _moves(
            (vested(job, account), due(account), from_vested),
            (earned(job, account), due(account), part - from_vested),
            job=job,
        )
    return entries


def restored(job: JobId, parts: Mapping[Address, BaseUnits]) -> list[Entry]:
    """A rejected epoch gave a debit back."""
    moves = [(due(account), vested(job, account), part) for account, part in sorted(parts.items())]
    return _moves(*moves, job=job)


def claimed(account: Address, amount: BaseUnits) -> list[Entry]:
    """The vault paid."""
    return _moves((due(account), paid(account), amount))


def staked(account: Address, amount: BaseUnits) -> list[Entry]:
    """StakeRegistry received stake."""
    return _moves((OUTSIDE, stake(account), amount))


def stake_reserved(job: JobId, account: Address, amount: BaseUnits) -> list[Entry]:
    """Stake backs a lease now."""
    return _moves((stake(account), reserved(job, account), amount), job=job)


def stake_released(job: JobId, account: Address, amount: BaseUnits) -> list[Entry]:
    """Stake is free again."""
    return _moves((reserved(job, account), stake(account), amount), job=job)


def unbonded(account: Address, amount: BaseUnits) -> list[Entry]:
    """Free stake is on its way back."""
    return _moves((stake(account), unbonding(account), amount))


def withdrawn(account: Address, amount: BaseUnits) -> list[Entry]:
    """Stake left."""
    return _moves((unbonding(account), OUTSIDE, amount))


def slashed_stake(
    job: JobId,
    account: Address,
    taken: BaseUnits,
    burned: BaseUnits,
    balances: Mapping[str, int],
) -> list[Entry]:
    """A case of `job` took stake: of its reservation first, then free, then unbonding stake.

    What is not burned left the registry: the bounty for good, the restitution comes back as a
    deposit by an event of its own. `balances` are those before.
    """
    sources = (reserved(job, account), stake(account), unbonding(account))
    parts, left = [], int(taken)
    for source in sources[:-1]:
        parts.append(min(left, max(0, balances.get(source, 0))))
        left -= parts[-1]
    parts.append(left)
    entries, given = list[Entry](), taken - burned
    for source, part in zip(sources, parts, strict=True):
        out = min(part, given)
        given -= out
        entries += _moves((source, OUTSIDE, out), (source, slashed(account), part - out), job=job)
    return entries


def reversal(entries: Sequence[Entry]) -> list[Entry]:
    """What books the same amounts back, last first, for an event that the chain forgot."""
    return [Entry(each.target, each.source, each.amount, each.job) for each in reversed(entries)]


# --------------------------------------------------------------------------------- the balances


def book(
    balances: Mapping[str, int], entries: Iterable[Entry], *, overdraft: bool = False
) -> dict[str, int]:
    """Balances after `entries`.

    Raises:
        InvariantBroken: an account but `outside` would fall below zero (unless `overdraft`), an
            amount is negative, or the sum of all accounts changed.
    """
    after = dict(balances)
    for entry in entries:
        if entry.amount < 0:
            raise InvariantBroken(f"negative entry {entry}")
        after[entry.source] = after.get(entry.source, 0) - entry.amount
        after[entry.target] = after.get(entry.target, 0) + entry.amount
        if after[entry.source] < 0 and entry.source != OUTSIDE and not overdraft:
            raise InvariantBroken(f"{entry.source} is overdrawn by {-after[entry.source]}")
    if sum(after.values()) != sum(balances.values()):
        raise InvariantBroken("entries made or lost money")
    return after


class JobFlows:
    """What moved between kinds of accounts for the sake of one job, from its entries so far."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._flows: Counter[tuple[str, str]] = Counter()

    def take(self, entries: Iterable[Entry]) -> None:
        """Add entries; those of other jobs are left out."""
        for entry in entries:
            if entry.job == self._job:
                self._flows[_kind(entry.source), _kind(entry.target)] += entry.amount

    def totals(self) -> JobTotals:
        """Where the money is.

        Raises:
            InvariantBroken: the parts are not what was escrowed.
        """
        parts = ("escrow", "earned", "vested", "due", "refunded")
        held = {kind: self._net(kind) for kind in parts}
        escrowed = self._flows[OUTSIDE, "escrow"] - self._flows["escrow", OUTSIDE]
        if escrowed != sum(held.values()):
            raise InvariantBroken(f"job {self._job.hex()}: escrowed {escrowed}, found {held}")
        return JobTotals(BaseUnits(escrowed), *(BaseUnits(held[kind]) for kind in parts))

    def _net(self, kind: str) -> int:
        into = sum(amount for (_, target), amount in self._flows.items() if target == kind)
        out = sum(amount for (source, _), amount in self._flows.items() if source == kind)
        return into - out


def _kind(account: str) -> str:
    return account.split(":", 1)[0]


def _moves(*moves: tuple[str, str, int], job: JobId | None = None) -> list[Entry]:
    return [
        Entry(source, target, BaseUnits(amount), job) for source, target, amount in moves if amount
    ]
