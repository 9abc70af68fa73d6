"""What an epoch pays."""

import pytest

from contracts.governance.pay import PayLeaf
from contracts.governance.settlement import (
    NOTHING_SETTLED,
    ClosedStatement,
    EpochSettlement,
    SealStatement,
    Statement,
    settle,
    share,
)
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId, StepNumber
from contracts.terms.merkle import EMPTY_SUM, FROZEN, job_leaf, sum_node

ANN, BOB = Address(b"a" * 20), Address(b"b" * 20)
JOB, OTHER = JobId(b"j" * 32), JobId(b"k" * 32)


def leaves(
    vested: dict[Address, int], earned: dict[Address, int] | None = None
) -> tuple[PayLeaf, ...]:
    whole = earned or vested
    return tuple(
        PayLeaf(account, BaseUnits(whole[account]), BaseUnits(vested.get(account, 0)))
        for account in sorted(whole)
    )


def sealed(
    vested: dict[Address, int], *, job: JobId = JOB, step: int = 1, cap: int = 10**9
) -> SealStatement:
    pay = leaves(vested)
    return SealStatement(job, Digest(bytes([step]) * 32), StepNumber(step), pay, BaseUnits(cap))


def closed(
    earned: dict[Address, int],
    vested: dict[Address, int],
    *,
    due: int,
    cap: int = 10**9,
    last: bool = False,
) -> ClosedStatement:
    pay = leaves(vested, earned)
    seal, step = Digest(b"s" * 32), StepNumber(9)
    return ClosedStatement(JOB, seal, step, pay, BaseUnits(cap), BaseUnits(due), last)


def epochs(*statements: list[Statement]) -> EpochSettlement:
    settled = NOTHING_SETTLED
    for number, each in enumerate(statements, start=1):
        settled = settle(EpochNumber(number), settled, each)
    return settled


def paid(settled: EpochSettlement) -> dict[Address, dict[JobId, int]]:
    return {each.account: dict(each.jobs) for each in settled.accounts}


def test_settle__nothing_to_pay__has_the_empty_root() -> None:
    assert epochs([]).root == EMPTY_SUM


def test_settle__two_jobs__pays_each_account_what_vested_in_both() -> None:
    settled = epochs([sealed({ANN: 5, BOB: 7}), sealed({ANN: 11}, job=OTHER)])

    assert paid(settled) == {ANN: {JOB: 5, OTHER: 11}, BOB: {JOB: 7}}
    assert settled.root.sum == settled.total == 23


def test_settle__second_epoch__debits_what_was_added_and_keeps_the_rest() -> None:
    settled = epochs([sealed({ANN: 5}), sealed({BOB: 1}, job=OTHER)], [sealed({ANN: 8}, step=2)])

    assert [(debit.job, debit.amount, debit.total) for debit in settled.debits] == [(JOB, 3, 8)]
    assert paid(settled) == {ANN: {JOB: 8}, BOB: {OTHER: 1}}


def test_settle__same_seal_again__debits_nothing() -> None:
    settled = epochs([sealed({ANN: 5})], [sealed({ANN: 5})])

    assert settled.debits == ()
    assert settled.total == 0


def test_settle__newest_seal_is_above_the_cap__names_the_newest_that_fits() -> None:
    offered: list[Statement] = [
        sealed({ANN: vested}, step=step, cap=10) for step, vested in enumerate((4, 9, 20), start=1)
    ]

    settled = epochs(offered)

    assert [debit.statement.step for debit in settled.debits] == [2]
    assert paid(settled) == {ANN: {JOB: 9}}


def test_settle__no_seal_fits_the_cap__leaves_the_job_out() -> None:
    assert epochs([sealed({ANN: 20}, cap=10)]).debits == ()


def test_settle__seal_that_vests_less_for_somebody__is_not_named() -> None:
    settled = epochs([sealed({ANN: 5, BOB: 5})], [sealed({ANN: 1, BOB: 50}, step=2)])

    assert paid(settled) == {ANN: {JOB: 5}, BOB: {JOB: 5}}


def test_settle__closed_job__pays_what_was_earned_in_pieces_of_the_cap() -> None:
    statement = closed({ANN: 30, BOB: 10}, {ANN: 5}, due=40, cap=15)
    first = epochs([sealed({ANN: 5})], [statement])

    assert paid(first) == {ANN: {JOB: 16}, BOB: {JOB: 4}}  # 15 of 25 : 10, rounded, rest to ann
    second = settle(EpochNumber(3), first, [statement])
    third = settle(EpochNumber(4), second, [statement])
    assert [second.total, third.total] == [15, 5]
    assert paid(third) == {ANN: {JOB: 30}, BOB: {JOB: 10}}
    assert settle(EpochNumber(5), third, [statement]).total == 0


def test_settle__closed_by_its_last_seal__pays_what_that_vested() -> None:
    settled = epochs([closed({ANN: 30}, {ANN: 30}, due=30, last=True)])

    assert paid(settled) == {ANN: {JOB: 30}}


def test_settle__closed_with_frozen_pay__leaves_the_frozen_part() -> None:
    settled = epochs([closed({FROZEN: 7, ANN: 30}, {ANN: 5}, due=30)])

    assert paid(settled) == {ANN: {JOB: 30}}


@pytest.mark.parametrize("last", [False, True])
def test_settle__closed_with_more_due_than_its_seal_owes__leaves_the_job_out(last: bool) -> None:
    settled = epochs([sealed({ANN: 5}), sealed({ANN: 5}, job=OTHER)])
    statement = closed({ANN: 30}, {ANN: 30 if last else 9}, due=31, last=last)

    settled = settle(EpochNumber(2), settled, [statement, sealed({ANN: 8}, job=OTHER, step=2)])

    assert paid(settled) == {ANN: {JOB: 5, OTHER: 8}}


def test_settle__job_open_and_closed__is_a_conflict() -> None:
    with pytest.raises(Conflict):
        epochs([sealed({ANN: 1}), closed({ANN: 1}, {ANN: 1}, due=1)])


def test_settle__epoch_that_is_not_later__is_a_conflict() -> None:
    with pytest.raises(Conflict):
        settle(EpochNumber(1), epochs([]), [])


def test_claim_proof__every_account__folds_to_the_root() -> None:
    settled = epochs([sealed({ANN: 5, BOB: 7}), sealed({ANN: 11}, job=OTHER)])

    for account in (ANN, BOB):
        each, proof = settled.claim_proof(account)
        assert merkle.fold(each.node(), proof, sum_node) == settled.root
    amount, proof = settled.job_proof(ANN, OTHER)
    assert (
        merkle.fold(job_leaf(OTHER, amount), proof, sum_node)
        == settled.claim_proof(ANN)[0].jobs_root
    )


def test_claim_proof__stranger__is_not_found() -> None:
    with pytest.raises(NotFound):
        epochs([]).claim_proof(ANN)
    with pytest.raises(NotFound):
        epochs([sealed({ANN: 5})]).job_proof(ANN, OTHER)


@pytest.mark.parametrize(
    ("amount", "owed", "parts"),
    [
        (0, {ANN: 5}, {}),
        (9, {}, {}),
        (3, {ANN: 1, BOB: 1}, {ANN: 1, BOB: 1}),
        (1, {ANN: 1, BOB: 1}, {ANN: 1}),
        (5, {ANN: 2, BOB: 4}, {ANN: 2, BOB: 3}),
    ],
)
def test_share__amount__is_divided_to_the_base_unit(
    amount: int, owed: dict[Address, int], parts: dict[Address, int]
) -> None:
    assert share(amount, owed) == parts
