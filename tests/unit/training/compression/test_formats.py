"""Sizes of wire bytes, and the codes of 8-bit elements."""

import itertools
from fractions import Fraction

from training.compression.code_book import borders, codes


def test_codes__all__ascend_symmetrically_from_minus_one_to_one() -> None:
    found = codes()

    assert len(found) == 255
    assert all(a < b for a, b in itertools.pairwise(found))
    assert found == tuple(-code for code in reversed(found))
    assert [found[0], found[127], found[254]] == [Fraction(number) for number in (-1, 0, 1)]


def test_borders__all__lie_between_neighbouring_codes() -> None:
    between = zip(codes(), borders(), codes()[1:], strict=False)

    assert len(borders()) == 254
    assert all(
        low < border < high and border - low == high - border for low, border, high in between
    )
