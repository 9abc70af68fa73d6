"""Rules of limits, one by one; `tests/property/test_limits.py` plays them."""

import pytest

from contracts.governance.escrow import Budget, Channel
from contracts.governance.limits import (
    Accrual,
    Idle,
    PayHistory,
    lag,
    lag_of,
    limits_owed,
    limits_to_grant,
    planned_round,
    round_pay,
    rounds_ahead,
    why_idle,
)
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import Address
from tests.support.history import make_spec

ANN, BOB, CAT = (Address(bytes([n]) * 20) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("totals", "pay"),
    [
        ([0], 7),
        ([0, 0, 0], 7),
        ([0, 3, 8, 9], 5),
        ([0, 100, *range(101, 131)], 1),  # the round of a hundred is long ago
        ([0, 100, *range(101, 127)], 100),
    ],
)
def test_round_pay__totals__is_the_most_of_late_or_what_was_planned(
    totals: list[int], pay: int
) -> None:
    assert round_pay(totals, planned=7, lag_rounds=28) == pay


def test_rounds_ahead__half_of_it__outlasts_a_confirmation() -> None:
    assert [rounds_ahead(1, 0), rounds_ahead(360, 3), rounds_ahead(1, 9)] == [8, 360, 24]


WORKS = Channel(limit=100, stake=5)


@pytest.mark.parametrize(
    ("pay", "channel", "closed_at", "why"),
    [
        (Accrual(80, 50, 10, 10), WORKS, 0, None),
        (Accrual(81, 81, 0, 10), WORKS, 0, "no_limit"),
        (Accrual(80, 0, 20, 10), WORKS, 0, None),
        (Accrual(80, 0, 19, 10), WORKS, 0, "unvested"),
        (Accrual(0, 0, 0, 10), Channel(limit=100, stake=4), 0, "no_bond"),
        (Accrual(0, 0, 0, 10), Channel(limit=100, stake=5, end=9), 0, "ended"),
        (Accrual(0, 0, 0, 10), WORKS, 9, "ended"),
        (Accrual(0, 0, 0, 0), WORKS, 0, "no_limit"),  # nobody knows what a round pays
    ],
)
def test_why_idle__each_rule__is_named(
    pay: Accrual, channel: Channel, closed_at: int, why: Idle | None
) -> None:
    budget = Budget(closed_at=closed_at)

    assert why_idle(pay, channel, budget, stake=5, lag_rounds=lag(0, 1)) == why


@pytest.mark.parametrize(
    ("available", "limits"),
    [
        (109, [(BOB, 160), (ANN, 130)]),
        (30, [(BOB, 130)]),  # four rounds, as Ann has
        (19, [(BOB, 110)]),
        (9, []),
    ],
)
def test_limits_to_grant__less_is_available__all_get_as_many_rounds_as_fit(
    available: int, limits: list[tuple[Address, int]]
) -> None:
    earnings = {ANN: Accrual(60, 0, 0, 10), BOB: Accrual(90, 0, 0, 10)}
    channels = {ANN: Channel(limit=100), BOB: Channel(limit=100)}

    due = limits_to_grant(earnings, channels, 8, available)

    assert [(each.account, each.limit) for each in due] == limits


def test_limits_to_grant__newcomer_wants_more_than_there_is__stops_nobody_who_works() -> None:
    earnings = {
        ANN: Accrual(60, 0, 0, 10),
        BOB: Accrual(90, 0, 0, 10),
        CAT: Accrual(0, 0, 0, 500),  # on fifty machines
    }
    channels = {ANN: Channel(limit=70), BOB: Channel(limit=100)}

    due = limits_to_grant(earnings, channels, 8, available=200)

    assert sorted((each.account, each.limit) for each in due) == sorted([(ANN, 80), (BOB, 110)])


def test_limits_to_grant__ended_or_without_pay__are_left_out() -> None:
    earnings = {ANN: Accrual(60, 0, 0, 10), BOB: Accrual(0, 0, 0, 0)}

    assert limits_to_grant(earnings, {ANN: Channel(limit=60, end=1)}, 8, 999) == ()


def test_planned_round__two_machines__each_does_its_share_of_the_stage_with_most_work() -> None:
    work = (Flops(10**15), Flops(3 * 10**15))
    spec = make_spec(stages=2, item_flops=work, units_per_step=7, peers_per_stage=3)

    assert planned_round(spec, [PricePerPflop(10), PricePerPflop(20)]) == 3 * 3 * (10 + 20) + 2
    assert lag_of(spec) == spec.rules.vesting_window + 5


def pay(**earned: int) -> list[PayLeaf]:
    accounts = {"ann": ANN, "bob": BOB}
    return [PayLeaf(accounts[n], BaseUnits(e), BaseUnits(e // 2)) for n, e in earned.items()]


def test_pay_history__seals__says_what_was_earned_and_most_of_it_in_a_round() -> None:
    history = PayHistory(lag_rounds=6)
    history.add((), {})
    assert history.accrual(ANN, planned=9) == Accrual(0, 0, 0, 9)

    for leaves in (pay(ann=4), pay(ann=10, bob=3), pay(ann=11, bob=3)):
        history.add(leaves, {BOB: 2})

    assert history.accrual(ANN, planned=9) == Accrual(11, 5, 0, 6)
    assert history.accrual(BOB, planned=9) == Accrual(3, 1, 2, 3)


def test_pay_history__first_seal_seen_is_not_the_first__its_total_is_no_round() -> None:
    history = PayHistory(lag_rounds=6)
    history.add(pay(ann=1000), {})
    assert history.accrual(ANN, planned=9).round == 9

    history.add(pay(ann=1007), {})

    assert history.accrual(ANN, planned=9).round == 7


def test_limits_owed__somebody_earned_more_than_its_limit__and_has_not_ended() -> None:
    earned = {who: Accrual(50, 50, 0, 5) for who in (ANN, BOB, CAT)}
    channels = {ANN: Channel(limit=50), BOB: Channel(limit=49), CAT: Channel(limit=1, end=7)}

    assert [(each.account, each.limit) for each in limits_owed(earned, channels)] == [(BOB, 50)]
