"""Entries of single events; any history is in tests/property/test_market_ledger.py."""

import pytest

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId
from contracts.terms.merkle import FORFEITED, FROZEN
from market.domain import ledger

JOB = JobId(bytes([7]) * 32)
ANN, BOB, CY = (Address(bytes([number]) * 20) for number in (1, 2, 3))


def leaf(account: Address, earned: int, vested: int) -> PayLeaf:
    return PayLeaf(account, BaseUnits(earned), BaseUnits(vested))


def booked(*groups: list[ledger.Entry]) -> dict[str, int]:
    balances: dict[str, int] = {}
    for entries in groups:
        balances = ledger.book(balances, entries)
    return balances


@pytest.mark.parametrize(
    "after", [(leaf(ANN, 9, 0),), (leaf(ANN, 12, 1), leaf(BOB, 1, 0)), (leaf(BOB, 99, 0),)]
)
def test_sealed__pay_falls_or_vanishes__is_a_bug_of_ours(after: tuple[PayLeaf, ...]) -> None:
    with pytest.raises(InvariantBroken):
        ledger.sealed(JOB, (leaf(ANN, 10, 2),), after)


def test_sealed__pay_is_frozen_then_forfeited_or_given_back__moves_between_accounts() -> None:
    leaves = [
        (leaf(ANN, 10, 2), leaf(BOB, 6, 0)),
        (leaf(FROZEN, 14, 0), leaf(ANN, 2, 2), leaf(CY, 3, 0)),
        (leaf(FORFEITED, 8, 8), leaf(ANN, 2, 2), leaf(BOB, 7, 5), leaf(CY, 3, 0)),
    ]

    groups = [
        ledger.sealed(JOB, before, after)
        for before, after in zip([(), *leaves[:-1]], leaves, strict=True)
    ]
    frozen = booked(ledger.deposit(JOB, BaseUnits(100)), *groups[:2])
    after = booked(ledger.deposit(JOB, BaseUnits(100)), *groups)

    assert frozen[ledger.escrow(JOB)] == 81 and after[ledger.escrow(JOB)] == 80
    assert frozen[ledger.earned(JOB, FROZEN)] == 14 and frozen[ledger.earned(JOB, BOB)] == 0
    assert after[ledger.earned(JOB, FROZEN)] == 0 == after[ledger.earned(JOB, FORFEITED)]
    assert after[ledger.vested(JOB, FORFEITED)] == 8 and after[ledger.vested(JOB, BOB)] == 5
    assert after[ledger.earned(JOB, BOB)] == 2 and after[ledger.earned(JOB, CY)] == 3


def test_book__more_than_there_is__is_a_bug_of_ours() -> None:
    balances = booked(ledger.deposit(JOB, BaseUnits(5)))

    with pytest.raises(InvariantBroken):
        ledger.book(balances, ledger.refund(JOB, BaseUnits(6)))


def test_debit__parts_that_are_not_the_amount__is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantBroken):
        ledger.debit(JOB, BaseUnits(3), {ANN: BaseUnits(2)}, {})


def totals_of(entries: list[ledger.Entry]) -> ledger.JobTotals:
    """Where the job's money is, from entries that come in two parts."""
    flows = ledger.JobFlows(JOB)
    flows.take(entries[:1])
    flows.take(entries[1:])
    return flows.totals()


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


def test_job_flows__money_that_left_by_no_door__is_a_bug_of_ours() -> None:
    entries = [
        *ledger.deposit(JOB, BaseUnits(5)),
        ledger.Entry(ledger.escrow(JOB), ledger.paid(ANN), BaseUnits(5), JOB),
    ]

    with pytest.raises(InvariantBroken):
        totals_of(entries)


def slashable_books() -> dict[str, int]:
    return booked(
        ledger.staked(ANN, BaseUnits(100)),
        ledger.stake_reserved(JOB, ANN, BaseUnits(40)),
        ledger.unbonded(ANN, BaseUnits(25)),
    )


@pytest.mark.parametrize(
    ("taken", "left"),
    [(30, (10, 35, 25)), (40, (0, 35, 25)), (60, (0, 15, 25)), (90, (0, 0, 10)), (0, (40, 35, 25))],
)
def test_slashed_stake__any_amount__comes_from_the_reservation_then_free_then_unbonding(
    taken: int, left: tuple[int, int, int]
) -> None:
    before = slashable_books()
    burned = taken - taken // 3

    after = ledger.book(
        before, ledger.slashed_stake(JOB, ANN, BaseUnits(taken), BaseUnits(burned), before)
    )

    owned = ledger.reserved(JOB, ANN), ledger.stake(ANN), ledger.unbonding(ANN)
    assert tuple(after[name] for name in owned) == left
    assert after.get(ledger.slashed(ANN), 0) == burned
    assert after[ledger.OUTSIDE] - before[ledger.OUTSIDE] == taken // 3


def test_slashed_stake__more_than_there_is__is_a_bug_of_ours() -> None:
    before = slashable_books()

    with pytest.raises(InvariantBroken):
        ledger.book(before, ledger.slashed_stake(JOB, ANN, BaseUnits(101), BaseUnits(101), before))


def test_slashed_stake__reservation_of_another_job__is_not_touched() -> None:
    before = booked(
        ledger.staked(ANN, BaseUnits(100)), ledger.stake_reserved(JOB, ANN, BaseUnits(100))
    )

    with pytest.raises(InvariantBroken):
        other = JobId(bytes([8]) * 32)
        ledger.book(before, ledger.slashed_stake(other, ANN, BaseUnits(1), BaseUnits(1), before))
