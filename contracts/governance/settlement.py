"""What an epoch pays, and the one root that says so. Pure.

Per job the newest anchored seal whose vested total the epoch cap lets through is named; the job's
debit is that total less what was debited before, and each account's part of it is what the seal's
pay tree says has vested for it, so that wrong pay is provable by two Merkle paths. A job that was
closed is settled by what its closing found due, in pieces of the epoch cap; a piece is shared in
proportion to what is still owed, rounded down, the rest one base unit each in account order. The
chain takes a piece whole: a job whose seal owes nobody so much is not settled, since it was closed
by another seal of the same step.

The root is over (account, root of its jobs, cumulative sum), all accounts ever paid, sorted.
Invariants: nothing is paid without a seal, and nothing twice; no cumulative amount ever falls; the
sum of the root = the sum of all debits ever. Units: base units. Source: docs/protocol.md 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TypeAlias

from contracts.governance.pay import PayLeaf
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId, StepNumber
from contracts.terms.merkle import (
    EMPTY_SUM,
    FORFEITED,
    FROZEN,
    Proof,
    SumNode,
    job_leaf,
    settlement_leaf,
    sum_node,
)

_RESERVED = (FROZEN, FORFEITED)


@dataclass(frozen=True)
class SealStatement:
    """An anchored seal of an open job: what it vests may be paid."""

    job: JobId
    seal: Digest
    step: StepNumber
    pay: tuple[PayLeaf, ...]
    epoch_cap: BaseUnits  # the smaller of the job's and the protocol's

    @cached_property
    def total(self) -> BaseUnits:
        """What the seal vests: what the chain debits up to."""
        return BaseUnits(sum(leaf.vested for leaf in self.pay))

    @cached_property
    def shares(self) -> dict[Address, BaseUnits]:
        """What has vested for each account."""
        return {leaf.account: leaf.vested for leaf in self.pay}


@dataclass(frozen=True)
class ClosedStatement:
    """The seal by which a job was closed, and what the chain found due by it in total."""

    job: JobId
    seal: Digest
    step: StepNumber
    pay: tuple[PayLeaf, ...]
    epoch_cap: BaseUnits
    due: BaseUnits  # JobEscrow.closingOf(job).due, at most what was deposited
    last: bool  # a last seal pays what it vests, another one what is earned and not frozen

    @property
    def shares(self) -> dict[Address, BaseUnits]:
        """What is due to each account if the deposit covers it."""
        return due_shares(self.pay, last=self.last)


Statement: TypeAlias = SealStatement | ClosedStatement


@dataclass(frozen=True)
class Debit:
    """What one job pays in an epoch, and the seal that says so."""

    job: JobId
    statement: Statement
    amount: BaseUnits
    total: BaseUnits  # this debit and all before it


@dataclass(frozen=True)
class AccountPay:
    """What an account was paid by each job, over all epochs: a leaf and the tree under it."""

    account: Address
    jobs: tuple[tuple[JobId, BaseUnits], ...]  # sorted by job, none zero

    @cached_property
    def cumulative(self) -> BaseUnits:
        """What the account may have claimed in total."""
        return BaseUnits(sum(amount for _, amount in self.jobs))

    @cached_property
    def jobs_root(self) -> SumNode:
        """Root of the account's tree of jobs."""
        return merkle.root([job_leaf(*each) for each in self.jobs], sum_node, EMPTY_SUM)

    @cached_property
    def _node(self) -> SumNode:
        return settlement_leaf(self.account, self.jobs_root.hash, self.cumulative)

    def node(self) -> SumNode:
        """The account's leaf of the settlement tree."""
        return self._node


@dataclass(frozen=True)
class EpochSettlement:
    """One epoch: who may have claimed how much since the beginning, and what each job paid now."""

    epoch: EpochNumber
    accounts: tuple[AccountPay, ...]  # sorted by account
    debits: tuple[Debit, ...]  # sorted by job, none zero

    @cached_property
    def root(self) -> SumNode:
        """What Settlement.propose posts."""
        return merkle.root([each.node() for each in self.accounts], sum_node, EMPTY_SUM)

    @property
    def total(self) -> BaseUnits:
        """What this epoch debits."""
        return BaseUnits(sum(debit.amount for debit in self.debits))

    @cached_property
    def by_job(self) -> Mapping[JobId, Mapping[Address, BaseUnits]]:
        """What each job has paid each account up to this epoch."""
        found: dict[JobId, dict[Address, BaseUnits]] = {}
        for each in self.accounts:
            for job, amount in each.jobs:
                found.setdefault(job, {})[each.account] = amount
        return found

    def debited(self, job: JobId) -> BaseUnits:
        """What `job` has paid up to this epoch."""
        return BaseUnits(sum(self.by_job.get(job, {}).values()))

    def claim_proof(self, account: Address) -> tuple[AccountPay, Proof[SumNode]]:
        """The leaf of `account` and its path to the root.

        Raises:
            NotFound: the account was never paid.
        """
        nodes = [each.node() for each in self.accounts]
        for index, each in enumerate(self.accounts):
            if each.account == account:
                return each, merkle.prove(nodes, index, sum_node)
        raise NotFound(f"0x{account.hex()} was not paid up to epoch {self.epoch}")

    def job_proof(self, account: Address, job: JobId) -> tuple[BaseUnits, Proof[SumNode]]:
        """What `job` paid `account`, and its path to the account's `jobs_root`.

        Raises:
            NotFound: it paid nothing.
        """
        paid, _ = self.claim_proof(account)
        nodes = [job_leaf(*each) for each in paid.jobs]
        for index, (each, amount) in enumerate(paid.jobs):
            if each == job:
                return amount, merkle.prove(nodes, index, sum_node)
        raise NotFound(f"job {job.hex()} paid 0x{account.hex()} nothing")


NOTHING_SETTLED = EpochSettlement(EpochNumber(0), (), ())
"""What stands before the first epoch."""


def settle(
    epoch: EpochNumber, previous: EpochSettlement, statements: Sequence[Statement]
) -> EpochSettlement:
    """What `epoch` pays on top of `previous`, the newest settlement that was not rejected.

    Several seals of one job may be offered; named is the newest that the cap lets through and that
    vests for nobody less than he was paid. A job without such a seal, or without anything new,
    keeps what it paid.

    Raises:
        Conflict: the epoch does not come after `previous`, or a job is both open and closed.
    """
    if epoch <= previous.epoch:
        raise Conflict(f"epoch {epoch} does not come after epoch {previous.epoch}")
    changed: dict[Address, dict[JobId, BaseUnits]] = {}
    debits: list[Debit] = []
    for job, offered in groupby(sorted(statements, key=_order), key=lambda each: each.job):
        before = previous.by_job.get(job, {})
        named = _named(list(offered), before)
        if named is None:
            continue
        parts = _parts(named, before)
        amount = BaseUnits(sum(parts.values()))
        if amount:
            total = BaseUnits(sum(before.values()) + amount)
            debits.append(Debit(job, named, amount, total))
            for account, part in parts.items():
                paid = BaseUnits(before.get(account, 0) + part)
                changed.setdefault(account, {})[job] = paid
    return EpochSettlement(epoch, _accounts(previous, changed), tuple(debits))


def share(amount: int, owed: Mapping[Address, int]) -> dict[Address, BaseUnits]:
    """Divide `amount` in proportion to what is owed, at most what is owed, down to the base unit.

    Rounded down; what is left goes one base unit each to the first accounts still owed more.
    """
    total = sum(owed.values())
    amount = min(amount, total)
    parts = {each: owed[each] * amount // total for each in sorted(owed)} if total else {}
    left = amount - sum(parts.values())
    for account in parts:
        if left and parts[account] < owed[account]:
            parts[account] += 1
            left -= 1
    return {account: BaseUnits(part) for account, part in parts.items() if part}


def due_shares(pay: Sequence[PayLeaf], *, last: bool) -> dict[Address, BaseUnits]:
    """What a closed job owes: what a `last` seal vested, else what is earned and not frozen."""
    return {
        leaf.account: leaf.vested if last or leaf.account in _RESERVED else leaf.earned
        for leaf in pay
    }


def _order(statement: Statement) -> tuple[JobId, int]:
    return statement.job, statement.step


def _named(offered: list[Statement], before: Mapping[Address, int]) -> Statement | None:
    closed = [each for each in offered if isinstance(each, ClosedStatement)]
    if closed and len(offered) > 1:
        raise Conflict(f"job {offered[0].job.hex()} is closed: one statement settles it")
    fitting = [each for each in offered if _is_payable(each, before)]
    return fitting[-1] if fitting else None


def _is_payable(statement: Statement, before: Mapping[Address, int]) -> bool:
    if isinstance(statement, ClosedStatement):
        return _piece(statement, before) <= sum(_owed(statement, before).values())
    shares = statement.shares
    falls = any(amount > shares.get(account, 0) for account, amount in before.items())
    return not falls and statement.total - sum(before.values()) <= statement.epoch_cap


def _parts(statement: Statement, before: Mapping[Address, int]) -> dict[Address, BaseUnits]:
    """What each account gets now."""
    owed = _owed(statement, before)
    if isinstance(statement, SealStatement):
        return share(statement.total - sum(before.values()), owed)
    return share(_piece(statement, before), owed)


def _owed(statement: Statement, before: Mapping[Address, int]) -> dict[Address, int]:
    shares = statement.shares
    return {account: max(0, shares[account] - before.get(account, 0)) for account in shares}


def _piece(statement: ClosedStatement, before: Mapping[Address, int]) -> int:
    """What the chain takes of a closed job in one epoch."""
    return max(0, min(statement.due - sum(before.values()), statement.epoch_cap))


def _accounts(
    previous: EpochSettlement, changed: Mapping[Address, Mapping[JobId, BaseUnits]]
) -> tuple[AccountPay, ...]:
    """Leaves of accounts that nothing changes for are those of before, trees and all."""
    accounts = {each.account: each for each in previous.accounts}
    for account, jobs in changed.items():
        known = accounts.get(account)
        paid = {**dict(known.jobs if known else ()), **jobs}
        accounts[account] = AccountPay(account, tuple((job, paid[job]) for job in sorted(paid)))
    return tuple(accounts[account] for account in sorted(accounts))
