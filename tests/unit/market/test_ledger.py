"""Entries of single events; any history is in tests/property/test_market_ledger.py."""

import pytest

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId
from market.domain import ledger

JOB = JobId(bytes([7]) * 32)
ANN, BOB = Address(bytes([1]) * 20), Address(bytes([2]) * 20)


def leaf(account: Address, earned: int, vested: int) -> PayLeaf:
    return PayLeaf(account, BaseUnits(earned), BaseUnits(vested))


def booked(*groups: list[ledger.Entry]) -> dict[str, int]:
    balances: dict[str, int] = {}
    for entries in groups:
        balances = ledger.book(balances, entries)
    return balances


def test_sealed__pay_grows__moves_the_difference_only() -> None:
    balances = booked(
        ledger.deposit(JOB, BaseUnits(100)),
        ledger.sealed(JOB, (), (leaf(ANN, 10, 0),)),
        ledger.sealed(JOB, (leaf(ANN, 10, 0),), (leaf(ANN, 15, 10), leaf(BOB, 5, 0))),
    )

    assert balances[ledger.escrow(JOB)] == 80
    assert balances[ledger.earned(JOB, ANN)] == 5
    assert balances[ledger.vested(JOB, ANN)] == 10
    assert balances[ledger.earned(JOB, BOB)] == 5


@pytest.mark.parametrize(
    "after", [(leaf(ANN, 9, 0),), (leaf(ANN, 12, 1), leaf(BOB, 1, 0)), (leaf(BOB, 99, 0),)]
)
def test_sealed__pay_falls_or_vanishes__is_a_bug_of_ours(after: tuple[PayLeaf, ...]) -> None:
    with pytest.raises(InvariantBroken):
        ledger.sealed(JOB, (leaf(ANN, 10, 2),), after)


def test_book__more_than_there_is__is_a_bug_of_ours() -> None:
    balances = booked(ledger.deposit(JOB, BaseUnits(5)))

    with pytest.raises(InvariantBroken):
        ledger.book(balances, ledger.refund(JOB, BaseUnits(6)))


def test_debit__after_a_close_by_a_seal_that_is_not_last__takes_what_is_earned_too() -> None:
    before = booked(
        ledger.deposit(JOB, BaseUnits(100)), ledger.sealed(JOB, (), (leaf(ANN, 30, 10),))
    )

    after = ledger.book(before, ledger.debit(JOB, BaseUnits(30), {ANN: BaseUnits(30)}, before))

    assert after[ledger.due(ANN)] == 30
    assert after[ledger.vested(JOB, ANN)] == after[ledger.earned(JOB, ANN)] == 0


def test_debit__parts_that_are_not_the_amount__is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantBroken):
        ledger.debit(JOB, BaseUnits(3), {ANN: BaseUnits(2)}, {})


def test_job_totals__whole_life__parts_sum_to_what_was_escrowed() -> None:
    entries = [
        *ledger.deposit(JOB, BaseUnits(100)),
        *ledger.sealed(JOB, (), (leaf(ANN, 30, 10),)),
        *ledger.debit(JOB, BaseUnits(10), {ANN: BaseUnits(10)}, {ledger.vested(JOB, ANN): 10}),
        *ledger.refund(JOB, BaseUnits(70)),
    ]

    totals = ledger.job_totals(JOB, entries)

    assert totals == ledger.JobTotals(*map(BaseUnits, (100, 0, 20, 0, 10, 70)))
    assert totals.remaining == 20


def test_reversal__of_any_entries__restores_the_balances() -> None:
    before = booked(ledger.deposit(JOB, BaseUnits(100)))
    entries = ledger.sealed(JOB, (), (leaf(ANN, 30, 10),))

    after = ledger.book(ledger.book(before, entries), ledger.reversal(entries))

    assert {name: amount for name, amount in after.items() if amount} == before


def test_stake__its_whole_life__comes_back() -> None:
    amount, part = BaseUnits(10), BaseUnits(4)

    balances = booked(
        ledger.staked(ANN, amount),
        ledger.stake_reserved(JOB, ANN, part),
        ledger.stake_released(JOB, ANN, part),
        ledger.unbonded(ANN, amount),
        ledger.withdrawn(ANN, amount),
    )

    assert not any(balances.values())


def test_stake__slashed__is_taken_from_the_account() -> None:
    balances = booked(ledger.staked(ANN, BaseUnits(10)), ledger.slashed_stake(ANN, BaseUnits(3)))

    assert balances[ledger.stake(ANN)] == 7
    assert balances[ledger.slashed(ANN)] == 3


def test_restored__a_rejected_debit__vests_again() -> None:
    vested = booked(
        ledger.deposit(JOB, BaseUnits(100)), ledger.sealed(JOB, (), (leaf(ANN, 30, 10),))
    )
    parts = {ANN: BaseUnits(10)}

    debited = ledger.book(vested, ledger.debit(JOB, BaseUnits(10), parts, vested))
    restored = ledger.book(debited, ledger.restored(JOB, parts))

    assert {name: amount for name, amount in restored.items() if amount} == {
        name: amount for name, amount in vested.items() if amount
    }


def test_book__negative_amount__is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantBroken):
        ledger.book({}, [ledger.Entry(ledger.OUTSIDE, "x", BaseUnits(-1))])


def test_job_totals__money_that_left_by_no_door__is_a_bug_of_ours() -> None:
    entries = [
        *ledger.deposit(JOB, BaseUnits(5)),
        ledger.Entry(ledger.escrow(JOB), ledger.paid(ANN), BaseUnits(5), JOB),
    ]

    with pytest.raises(InvariantBroken):
        ledger.job_totals(JOB, entries)
