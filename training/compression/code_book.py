"""The 255 numbers that an 8-bit element can stand for, in parts of its block's scale. Torch-free.

Dynamic (Dettmers 2015, arXiv 1511.04561): the decade below 1 is cut into 64 equal cells, each
further down into half as many; a code is its cell's middle. Symmetric, with 0, 1 and -1, so that
the largest element keeps its value and decoded numbers encode to the same bytes again; for the
second 1 the seventh decade, of one cell, is left out. Exact fractions: the same on every machine.
"""

import itertools
from fractions import Fraction

_DECADES = 6  # the lowest has two cells


def _magnitudes() -> list[Fraction]:
    """Positive codes, ascending."""
    found = []
    for decade in range(_DECADES, 0, -1):
        top, num_cells = Fraction(10, 10**decade), 2 ** (_DECADES + 1 - decade)
        width = top * Fraction(9, 10) / num_cells
        found += [top / 10 + width * (2 * cell + 1) / 2 for cell in range(num_cells)]
    return [*found, Fraction(1)]


def codes() -> tuple[Fraction, ...]:
    """All codes, ascending; an element on the wire is a place in this list."""
    above = _magnitudes()
    return (*(-code for code in reversed(above)), Fraction(0), *above)


def borders() -> tuple[Fraction, ...]:
    """Middles between neighbouring codes: where the nearest code changes."""
    ascending = codes()
    return tuple((a + b) / 2 for a, b in itertools.pairwise(ascending))
