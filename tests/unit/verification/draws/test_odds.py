"""P(undetected): small products that can be checked by hand, and how they are shown."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from contracts.terms.errors import Malformed
from tests.unit.verification.draws.test_economics import TERMS
from verification.draws.odds import (
    Exposed,
    Odds,
    exact,
    read_exact,
    short,
    stated_odds,
    undetected,
)

HALF, FIFTH, ALWAYS = Fraction(1, 2), Fraction(1, 5), Fraction(1)


def exposed(rate: Fraction, phi: Fraction | None = HALF) -> Exposed:
    return Exposed(rate, phi)


def test_undetected__independent_chances__is_their_product() -> None:
    assert undetected(Counter([HALF, FIFTH]), 2) == Fraction(2, 5)
    assert undetected(Counter([HALF, ALWAYS]), 2) == 0
    assert undetected(Counter([HALF, HALF, FIFTH, FIFTH, FIFTH]), 4) == Fraction(4, 5) ** 3 / 2
    assert undetected(Counter(), 0) == 1


def test_odds__each_supposition__has_its_own_chance() -> None:
    (found,) = stated_odds(TERMS, [exposed(HALF), exposed(FIFTH)], ())

    assert found == Odds(
        falsified=2,
        strangers=Fraction(1, 2) * Fraction(4, 5),
        friends=Fraction(7, 10) * Fraction(22, 25),  # 3/5 of the draws are seen
        whole_stage=Fraction(9, 10) * Fraction(24, 25),  # 1/5 of them
    )


def test_odds__nobody_was_eligible_in_the_stage__friends_change_nothing() -> None:
    (found,) = stated_odds(TERMS, [exposed(HALF, None)])

    assert found == Odds(1, strangers=HALF, friends=HALF, whole_stage=HALF)


def test_odds__replay_that_misses_some__is_less_certain() -> None:
    weaker = replace(TERMS, detection=Fraction(9, 10))

    assert stated_odds(weaker, [exposed(ALWAYS)])[0].strangers == Fraction(1, 10)


def test_stated_odds__fewer_than_all__are_those_with_the_lowest_rates() -> None:
    found, _ = stated_odds(TERMS, [exposed(HALF), exposed(FIFTH), exposed(ALWAYS)], (2,))

    assert found.strangers == Fraction(2, 5)


def test_stated_odds__what_is_lowest_differs__each_supposition_chooses() -> None:
    among_friends, alone = exposed(HALF, ALWAYS), exposed(FIFTH, None)
    found, _ = stated_odds(TERMS, [among_friends, alone], (1,))

    assert found.strangers == 1 - FIFTH  # the one that was drawn less often
    assert found.friends == 1 - Fraction(1, 10)  # the one whose auditors are friends
    assert found.whole_stage == 1 - Fraction(1, 10)


def test_stated_odds__volumes__are_ascending_and_end_with_all_that_was_done() -> None:
    peer_steps = [exposed(HALF)] * 3

    found = stated_odds(TERMS, peer_steps, (2, 1, 7))

    assert [each.strangers for each in found] == [HALF, HALF**2, HALF**3]


def test_stated_odds__as_many_as_a_volume__are_stated_once() -> None:
    assert [each.falsified for each in stated_odds(TERMS, [exposed(HALF)])] == [1]


@pytest.mark.parametrize(
    ("chance", "shown"),
    [
        (Fraction(0), "0"),
        (Fraction(1), "1"),
        (Fraction(1, 2), "0.5"),
        (Fraction(1, 3), "0.334"),
        (Fraction(1, 1000), "0.001"),
        (Fraction(10**9 - 1, 10**9), "1.00"),
        (Fraction(1, 24), "0.0417"),
        (Fraction(1, 3 * 10**6), "3.34e-7"),
        (Fraction(10**9 - 1, 10**18), "1.00e-9"),
        (Fraction(1, 10**5000), "1.00e-5000"),
    ],
)
def test_short__any_chance__is_never_below_it(chance: Fraction, shown: str) -> None:
    assert short(chance) == shown
    assert Fraction(shown) >= chance


@pytest.mark.parametrize("exponent", [0, 1, 900, 20_000])
def test_exact__however_long__can_be_read_again(exponent: int) -> None:
    chance = Fraction(19, 20) ** exponent
    numerator, denominator = exact(chance).split("/")

    assert Fraction(int(numerator, 0), int(denominator, 0)) == chance
    assert read_exact(exact(chance)) == chance
    assert read_exact(exact(1 - chance)) == 1 - chance


@pytest.mark.parametrize(
    "text", ["", "1", "1/0", "1/0x0", "1/-2", "1.5/2", " 1/2", "1/2/3", "0b1/2", f"1/{'9' * 5000}"]
)
def test_read_exact__no_chance__is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="no numerator/denominator"):
        read_exact(text)


def test_exact__short_one__is_decimal() -> None:
    assert exact(Fraction(19, 20)) == "19/20"
