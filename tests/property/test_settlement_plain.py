"""Settling by what changed gives the settlement that settling everything anew gives.

The plain definition is here: all leaves in one mapping, rebuilt and hashed in every epoch.
"""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance import settlement
from contracts.governance.pay import PayLeaf
from contracts.governance.settlement import (
    NOTHING_SETTLED,
    AccountPay,
    ClosedStatement,
    EpochSettlement,
    SealStatement,
    Statement,
    settle,
)
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, EpochNumber, JobId, StepNumber

JOBS = tuple(JobId(bytes([n]) * 32) for n in range(1, 5))
ACCOUNTS = tuple(Address(bytes([n]) * 20) for n in range(1, 6))

amounts = st.lists(st.integers(0, 30), min_size=5, max_size=5)
kinds = st.sampled_from(["seal", "seal", "seal", "closed", "none"])
epochs = st.lists(st.lists(st.tuples(kinds, amounts, st.integers(0, 60)), min_size=4, max_size=4))


def plain(
    epoch: EpochNumber, previous: EpochSettlement, statements: list[Statement]
) -> tuple[AccountPay, ...]:
    """The accounts after an epoch; each job makes one statement."""
    paid = {(each.account, job): amount for each in previous.accounts for job, amount in each.jobs}
    for statement in sorted(statements, key=lambda each: each.job):
        job = statement.job
        before = {account: amount for (account, of), amount in paid.items() if of == job}
        named = settlement._named([statement], before)
        for account, part in settlement._parts(named, before).items() if named else ():
            paid[account, job] = BaseUnits(before.get(account, 0) + part)
    jobs_of: dict[Address, Counter[JobId]] = {}
    for (account, job), amount in paid.items():
        jobs_of.setdefault(account, Counter())[job] += amount
    return tuple(
        AccountPay(
            each, tuple((job, BaseUnits(jobs_of[each][job])) for job in sorted(jobs_of[each]))
        )
        for each in sorted(jobs_of)
    )


def statement_of(number: int, kind: str, sums: list[int], step: int, cap: int) -> Statement:
    pay = tuple(
        PayLeaf(account, BaseUnits(amount), BaseUnits(amount))
        for account, amount in zip(ACCOUNTS, sums, strict=True)
    )
    seal, at, limit = Digest(bytes([step]) * 32), StepNumber(step), BaseUnits(cap)
    if kind == "closed":
        due = BaseUnits(sum(sums) // 2)
        return ClosedStatement(JOBS[number], seal, at, pay, limit, due, last=False)
    return SealStatement(JOBS[number], seal, at, pay, limit)


@given(epochs)
def test_settle__any_epochs__accounts_and_root_are_those_of_the_plain_definition(
    history: list[list[Any]],
) -> None:
    previous, vested = NOTHING_SETTLED, [[0] * 5 for _ in JOBS]
    for number, offered in enumerate(history, start=1):
        statements = []
        for job, (kind, sums, cap) in enumerate(offered):
            vested[job] = [old + new for old, new in zip(vested[job], sums, strict=True)]
            if kind != "none":
                statements.append(statement_of(job, kind, vested[job], number, cap))
        expected = plain(EpochNumber(number), previous, statements)

        settled = settle(EpochNumber(number), previous, statements)

        assert settled.accounts == expected
        assert settled.root == EpochSettlement(settled.epoch, expected, ()).root
        for name in JOBS:
            paid = sum(dict(each.jobs).get(name, BaseUnits(0)) for each in expected)
            assert settled.debited(name) == paid
        previous = settled
