"""Are signs turned, as many as said, and nothing else?"""

import random
import struct
from fractions import Fraction

import pytest

from tallystick.gym.signs import all_turned, shuffled, some_turned

NUMBERS = [float(number) for number in range(1, 401)]
FORMATS = {2: "<400e", 4: "<400f"}
WIDTHS = pytest.mark.parametrize("width", [2, 4])


def packed(width: int) -> bytes:
    return struct.pack(FORMATS[width], *NUMBERS)


def numbers(data: bytes, width: int) -> list[float]:
    return list(struct.unpack(FORMATS[width], data))


@WIDTHS
def test_all_turned__numbers__are_negated(width: int) -> None:
    assert numbers(all_turned(packed(width), width), width) == [-number for number in NUMBERS]


@WIDTHS
def test_some_turned__one_in_a_hundred__four_of_four_hundred(width: int) -> None:
    changed = some_turned(packed(width), width, Fraction(1, 100), random.Random(1))

    assert [abs(number) for number in numbers(changed, width)] == NUMBERS
    assert sum(number < 0 for number in numbers(changed, width)) == 4


@WIDTHS
def test_shuffled__numbers__about_half_are_negated(width: int) -> None:
    changed = shuffled(packed(width), width, random.Random(1))

    assert [abs(number) for number in numbers(changed, width)] == NUMBERS
    assert 150 < sum(number < 0 for number in numbers(changed, width)) < 250
