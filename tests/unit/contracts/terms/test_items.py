"""How are sets of items written, and which items may still be sealed?"""

import pytest
from pydantic import TypeAdapter, ValidationError

from contracts.terms.errors import Malformed
from contracts.terms.items import (
    MAX_UNSEALED,
    Cursor,
    ItemNumber,
    Ranges,
    count,
    numbers_of,
    ranges_of,
)

RANGES: TypeAdapter[Ranges] = TypeAdapter(Ranges)


def items(*numbers: int) -> tuple[ItemNumber, ...]:
    return tuple(map(ItemNumber, numbers))


def test_ranges_of__numbers_in_any_order__have_one_spelling_and_come_back() -> None:
    ranges = ranges_of(items(7, 1, 2, 9, 1, 8))

    assert ranges == ((1, 3), (7, 10))
    assert numbers_of(ranges) == (1, 2, 7, 8, 9)
    assert count(ranges) == 5
    assert ranges_of(()) == ()


@pytest.mark.parametrize(
    "ranges",
    [
        ((3, 3),),
        ((4, 3),),
        ((0, 2), (2, 4)),
        ((0, 3), (2, 4)),
        ((5, 6), (1, 2)),
        ((-1, 2),),
        ((0, 2**53),),
        tuple((2 * n, 2 * n + 1) for n in range(2**12 + 1)),
    ],
    ids=["empty", "backwards", "no gap", "overlap", "descend", "negative", "too high", "too many"],
)
def test_ranges__another_spelling__is_refused(ranges: Ranges) -> None:
    with pytest.raises(ValidationError):
        RANGES.validate_python(ranges)


def test_cursor__what_a_round_left__is_issued_first() -> None:
    cursor = Cursor().after(items(0, 1, 4))

    assert (cursor.next, cursor.unsealed) == (5, ((2, 4),))
    assert cursor.issue(4) == (2, 3, 5, 6)
    assert cursor.issue(1) == (2,)
    assert cursor.after(cursor.issue(4)) == Cursor(ItemNumber(7))


def test_cursor__is_free__neither_sealed_nor_too_far_ahead() -> None:
    cursor = Cursor().after(items(0, 2))

    assert [cursor.is_free(item) for item in items(0, 1, 2, 3)] == [False, True, False, True]
    assert cursor.is_free(ItemNumber(2 + MAX_UNSEALED))
    assert not cursor.is_free(ItemNumber(3 + MAX_UNSEALED))


@pytest.mark.parametrize("sealed", [(0,), (1, 1), (2 + 2**16 + 1,)])
def test_cursor__item_that_is_not_free__is_malformed(sealed: tuple[int, ...]) -> None:
    with pytest.raises(Malformed):
        Cursor().after(items(0, 2)).after(items(*sealed))


def test_cursor__more_left_than_a_seal_holds__is_malformed() -> None:
    far = Cursor().after(items(MAX_UNSEALED - 1))

    with pytest.raises(Malformed, match="unsealed"):
        far.after(items(MAX_UNSEALED + 2))
    with pytest.raises(Malformed, match="unsealed"):  # ranges
        Cursor().after(items(*range(1, 2 * (2**12 + 1), 2)))
