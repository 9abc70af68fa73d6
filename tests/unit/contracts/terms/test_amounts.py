"""Money and work."""

import pytest

from contracts.terms.amounts import Flops, PricePerPflop, format_tokens, pay_for, read_tokens


def test_pay_for__part_of_a_base_unit__is_rounded_down() -> None:
    assert pay_for(Flops(10**15 - 1), PricePerPflop(1)) == 0
    assert pay_for(Flops(3 * 10**15 // 2), PricePerPflop(1)) == 1


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.000000"), (1, "0.000001"), (12_340_000, "12.340000"), (-5, "-0.000005")],
)
def test_format_tokens__amount__has_six_decimals(amount: int, text: str) -> None:
    assert format_tokens(amount) == text


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("12.5", 12_500_000),
        (0, 0),
        ("1e3", 10**9),
        (0.000001, 1),
        ("79228162514264337593543", 79228162514264337593543 * 10**6),
    ],
)
def test_read_tokens__a_number__is_exact_in_base_units(text: object, units: int) -> None:
    assert read_tokens(text) == units


@pytest.mark.parametrize(
    "value",
    ["", "x", "-1", True, None, [1], "0.0000001", "1.0000000000000000000000000000000000000000001",
     "nan", "inf", "1e99", "1e999999999", "1e-999999999", float("inf"), 2**96, "9" * 5000],
)  # fmt: skip
def test_read_tokens__anything_else__is_refused_and_never_rounded(value: object) -> None:
    with pytest.raises(ValueError, match="an amount in tokens"):
        read_tokens(value)
