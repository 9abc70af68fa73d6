"""The audit rate and what surrounds it: by example, in round numbers."""

from dataclasses import replace
from fractions import Fraction

import pytest

from contracts.terms.amounts import UINT96_MAX, BaseUnits, Flops, PricePerPflop
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ZERO_DIGEST, Address, StepNumber
from contracts.terms.messages import AuditSpec
from verification.draws import economics
from verification.draws.economics import (
    StakeRange,
    Terms,
    forced,
    largest_owner,
    least_stake,
    most_value,
    power,
    rate,
    stake_at_floor,
    stakes_among_equals,
    terms_of,
    value,
    waiting,
)

TERMS = Terms(
    floor=Fraction(1, 20),
    sums=Fraction(1, 10),
    repeats=Fraction(1, 5),
    margin=Fraction(5, 4),
    detection=Fraction(1),
    window=5,
)
NEVER_REPEATED = replace(TERMS, repeats=Fraction(0))
STRANGERS, FRIENDS, NEVER = Fraction(1), Fraction(1, 5), Fraction(0)
A_PFLOP = 10**15
A, B, C = (Address(letter * 20) for letter in (b"a", b"b", b"c"))


def money(worth: int, stake: int, recent: int) -> dict[str, BaseUnits]:
    return {"value": BaseUnits(worth), "stake": BaseUnits(stake), "waiting": BaseUnits(recent)}


def needed(worth: int, stake: int, recent: int, power: Fraction = STRANGERS) -> Fraction | None:
    return economics.needed(TERMS, TERMS.floor, worth, stake + recent, power)


def drawn(
    worth: int, stake: int, recent: int, power: Fraction = STRANGERS, terms: Terms = TERMS
) -> Fraction:
    return rate(terms, **money(worth, stake, recent), power=power)


def most(stake: int, recent: int, power: Fraction, terms: Terms = TERMS) -> int:
    return most_value(terms, stake=BaseUnits(stake), waiting=BaseUnits(recent), power=power)


def test_terms_of__signed_parts_of_a_million__are_exact() -> None:
    audit = AuditSpec(
        floor=50_000, sums=100_000, repeats=200_000, margin=1_250_000, detection=1_000_000,
        deadline=4, thresholds=ZERO_DIGEST, price=PricePerPflop(1), budget=BaseUnits(0),
        device_class="",
    )  # fmt: skip

    assert terms_of(audit, window=5) == TERMS


def test_value__part_of_a_base_unit__counts_as_one() -> None:
    assert value(Flops(0), PricePerPflop(3)) == 0
    assert value(Flops(1), PricePerPflop(3)) == 1
    assert value(Flops(A_PFLOP), PricePerPflop(3)) == 3
    assert value(Flops(A_PFLOP + 1), PricePerPflop(3)) == 4


def test_waiting__steps_around_the_window__counts_the_window_alone() -> None:
    work = {StepNumber(step): Flops(step * A_PFLOP) for step in range(1, 10)}
    found = waiting(work, PricePerPflop(1), step=StepNumber(8), window=3)

    assert found == 5 + 6 + 7


def test_waiting__parts_of_a_base_unit__add_up_and_are_rounded_down_once() -> None:
    work = {StepNumber(step): Flops(A_PFLOP * 2 // 5) for step in (1, 2, 3, 4)}

    assert waiting(work, PricePerPflop(1), step=StepNumber(5), window=5) == 1  # 1.6


def test_largest_owner__several__is_its_part_of_all() -> None:
    assert largest_owner({A: 1, B: 3, C: 2}) == Fraction(1, 2)


def test_largest_owner__nobody_eligible__is_none() -> None:
    assert largest_owner({}) is None


def test_largest_owner__weight_of_zero__is_our_own_bug() -> None:
    with pytest.raises(InvariantBroken):
        largest_owner({A: 1, B: 0})


@pytest.mark.parametrize(
    ("phi", "found"),
    [
        (Fraction(0), Fraction(1)),
        (Fraction(1, 2), Fraction(3, 5)),
        (Fraction(1), Fraction(1, 5)),
        (None, Fraction(1)),
    ],
)
def test_power__friends_among_auditors__are_repeated_one_in_five(
    phi: Fraction | None, found: Fraction
) -> None:
    assert power(TERMS, phi) == found


def test_power__replay_that_misses_a_tenth__finds_nine_tenths() -> None:
    weaker = replace(TERMS, detection=Fraction(9, 10))

    assert power(weaker, Fraction(1, 2)) == Fraction(27, 50)
    assert power(weaker, None) == Fraction(9, 10)


def test_rate__newcomer_with_one_value_at_stake__is_five_in_eight() -> None:
    assert drawn(100, stake=100, recent=0) == Fraction(5, 8)


def test_rate__waiting_pay__brings_it_to_the_floor() -> None:
    assert drawn(100, stake=100, recent=500) == Fraction(5, 28)
    assert drawn(100, stake=100, recent=2300) == Fraction(1, 20)
    assert drawn(100, stake=100, recent=9900) == TERMS.floor


def test_rate__more_than_it_can_answer_for__is_certain() -> None:
    assert needed(100, stake=0, recent=0) == Fraction(5, 4)
    assert drawn(100, stake=0, recent=0) == 1


def test_rate__stage_of_friends__asks_for_five_times_as_much() -> None:
    assert needed(100, stake=100, recent=0, power=FRIENDS) == Fraction(25, 8)


def test_rate__drawn_work_is_never_found__is_certain_and_not_enough() -> None:
    assert needed(1, stake=100, recent=100, power=NEVER) is None
    assert drawn(1, stake=100, recent=100, power=NEVER) == 1


def test_most_value__no_margin_and_always_found__has_no_limit() -> None:
    even = replace(TERMS, margin=Fraction(1))

    assert most(0, 0, STRANGERS, even) == UINT96_MAX


def test_least_stake__friends_that_nobody_repeats__is_never_enough() -> None:
    assert least_stake(NEVER_REPEATED, value=BaseUnits(1), power=power(NEVER_REPEATED, None)) == 1
    assert power(NEVER_REPEATED, Fraction(1)) == 0


@pytest.mark.parametrize(
    ("owners", "least"),
    [
        (1, 75),  # 300 (5/4 - 1): audited from outside
        (2, 1575),  # phi = 1: 300 (5/4 x 5 - 1)
        (3, 325),  # phi = 1/2: 300 (5/4 x 5/3 - 1)
        (5, 169),  # phi = 1/4: 300 (5/4 x 5/4 - 1), rounded up
    ],
)
def test_stakes_among_equals__units_of_the_dearest_stage__are_covered(
    owners: int, least: int
) -> None:
    found = stakes_among_equals(
        TERMS,
        item_flops=(Flops(A_PFLOP), Flops(50 * A_PFLOP)),
        units=3,
        price=PricePerPflop(2),
        owners=owners,
    )

    assert found.least == least


def test_stakes_among_equals__two_owners_and_no_repeats__is_never_enough() -> None:
    found = stakes_among_equals(
        NEVER_REPEATED, item_flops=(Flops(1),), units=1, price=PricePerPflop(1), owners=2
    )

    assert found.least is None and found.at_floor is None


@pytest.mark.parametrize(
    ("worth", "owners", "floor"),
    [(1, 2, Fraction(1, 100)), (300, 3, Fraction(1, 20)), (10**15, 40, Fraction(1, 3))],
)
def test_stake_at_floor__any_worth__is_the_least_whose_newcomer_is_drawn_at_the_floor(
    worth: int, owners: int, floor: Fraction
) -> None:
    terms, found = replace(TERMS, floor=floor), power(TERMS, Fraction(1, owners - 1))
    stake = stake_at_floor(terms, value=BaseUnits(worth), power=found)

    assert stake is not None
    at, below = (drawn(worth, each, 0, found, terms) for each in (stake, stake - 1))
    assert at == floor < below


def test_stake_range__more_than_can_be_reserved__is_what_can_be_but_never_below_the_least() -> None:
    stakes = StakeRange(least=BaseUnits(5), at_floor=BaseUnits(100))

    assert [stakes.within(BaseUnits(each)) for each in (1, 50, 1000)] == [5, 50, 100]


def test_forced__above_the_norm_gate__is_certain() -> None:
    assert forced(Fraction(1, 20), above_gate=True) == 1


@pytest.mark.parametrize(
    ("since", "found"),
    [(None, Fraction(1, 20)), (0, Fraction(1, 2)), (19, Fraction(1, 2)), (20, Fraction(1, 20))],
)
def test_forced__after_an_unrepeated_draw__is_half_for_twenty(
    since: int | None, found: Fraction
) -> None:
    assert forced(Fraction(1, 20), since_unrepeated=since) == found


def test_forced__more_than_half_already__stays() -> None:
    assert forced(Fraction(5, 8), since_unrepeated=0) == Fraction(5, 8)
