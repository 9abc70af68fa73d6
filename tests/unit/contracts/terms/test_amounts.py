"""Money and work."""

import pytest

from contracts.terms.amounts import Flops, PricePerPflop, format_tokens, pay_for


def test_pay_for__part_of_a_base_unit__is_rounded_down() -> None:
    assert pay_for(Flops(10**15 - 1), PricePerPflop(1)) == 0
    assert pay_for(Flops(3 * 10**15 // 2), PricePerPflop(1)) == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.000000"), (1, "0.000001"), (12_340_000, "12.340000"), (-5, "-0.000005")],
)
def test_format_tokens__amount__has_six_decimals(amount: int, text: str) -> None:
    assert format_tokens(amount) == text
