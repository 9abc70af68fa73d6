"""Sizes of wire bytes, and the codes of 8-bit elements."""

import itertools
from fractions import Fraction

import pytest

from contracts.terms.errors import Malformed
from contracts.terms.messages import CodecName
from training.compression.code_book import borders, codes
from training.compression.formats import BLOCK, FORMATS


@pytest.mark.parametrize("num_bytes", [1, 4, BLOCK + 5, BLOCK + 8])
def test_blockwise8__scale_without_element__is_refused(num_bytes: int) -> None:
    with pytest.raises(Malformed):
        FORMATS["blockwise8"].num_elements(num_bytes)


@pytest.mark.parametrize(("name", "num_bytes"), [("none", 6), ("float16", 3), ("bfloat16", 5)])
def test_float_formats__part_of_an_element__is_refused(name: CodecName, num_bytes: int) -> None:
    with pytest.raises(Malformed):
        FORMATS[name].num_elements(num_bytes)


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
