"""Are values spelled so that people read what programs are told?"""

import pytest

from market.web import words

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0"),
        (1, "0.000001"),
        (1_000_000, "1"),
        (12_500_000, "12.5"),
        (1_234_567_890_123, "1,234,567.890123"),
        (2**96 - 1, "79,228,162,514,264,337,593,543.950335"),
    ],
)
def test_tokens__amount__is_exact(amount: int, said: str) -> None:
    assert words.tokens(amount) == said


@pytest.mark.parametrize(
    ("moment", "said"), [(NOW, "2023-11-14 22:13:20 UTC"), (0, "1970-01-01 00:00:00 UTC")]
)
def test_utc__moment__is_spelled_to_the_second(moment: int, said: str) -> None:
    assert words.utc(moment) == said


@pytest.mark.parametrize("moment", [2**63 * 1000, -5])
def test_utc__moment_that_no_calendar_has__is_never(moment: int) -> None:
    assert (words.utc(moment), words.iso(moment)) == ("never", "")


@pytest.mark.parametrize(
    ("exact", "said"),
    [("1/1", "1"), ("1/100", "0.01"), ("0/1", "0"), ("0x1/0xffffffffff", "below 0.000001")],
)
def test_chance__exact_rational__is_rounded_for_people(exact: str, said: str) -> None:
    assert words.chance(exact) == said


@pytest.mark.parametrize(
    ("exact", "said"),
    [("1/20", "1 in 20"), ("0x1/0x3", "1 in 3"), ("1/1", "always"), ("0/5", "never")],
)
def test_odds__rate__is_one_in_so_many(exact: str, said: str) -> None:
    assert words.odds(exact) == said
