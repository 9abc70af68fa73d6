"""Does a plan lie when and as often as it says, the same way each time?"""

from fractions import Fraction

import pytest

from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.plan import Plan, parse

UNITS = [ItemNumber(unit) for unit in range(400)]


def lied_about(plan: Plan, step: int) -> list[ItemNumber]:
    return [unit for unit in UNITS if plan.lies_about(StepNumber(step), unit)]


def test_plan__third_of_the_units__about_a_third_and_the_same_ones_again() -> None:
    plan = Plan(seed=3, share=Fraction(1, 3))

    assert 100 < len(lied_about(plan, 5)) < 170
    assert lied_about(plan, 5) == lied_about(Plan(seed=3, share=Fraction(1, 3)), 5)
    assert lied_about(plan, 5) != lied_about(plan, 6)
    assert lied_about(plan, 5) != lied_about(Plan(seed=4, share=Fraction(1, 3)), 5)


def test_parse__all_options__in_any_order() -> None:
    name, plan = parse("stale:share=1/3,until=9,from=3,seed=7")

    assert (name, plan) == ("stale", Plan(7, 3, 9, Fraction(1, 3)))
    assert parse("copied") == ("copied", Plan())


@pytest.mark.parametrize(
    "text",
    ["x:from", "x:from=a", "x:share=2", "x:share=-1", "x:share=1/0", "x:seed=1,seed=2", "x:to=3"],
)
def test_parse__anything_else__is_refused(text: str) -> None:
    with pytest.raises(WrongConfiguration):
        parse(text)
