"""Numbers of a job's items, which of them a seal has covered, and which a round issues. Pure.

An item is the unit of a job's data, numbered over the whole job: a micro-batch. What is sealed is
everything below `next` but `unsealed`. A round issues the unsealed numbers first, then goes on from
`next`, so every row is used before the next pass begins, and restarts, replays and newcomers need
the seals alone.

Sets of numbers travel as half-open ranges, which have one spelling: ascending, none empty, and a
gap between two. Invariants: `next` never falls; an item is sealed once.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, NewType

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator

from contracts.terms.errors import Malformed

ItemNumber = NewType("ItemNumber", int)  # over the whole job

MAX_ITEM = 2**53 - 1
MAX_RANGES = 2**12
MAX_UNSEALED = 2**16
"""Items below `next` that no seal covers, and how far above it a claim may reach."""
MAX_ITEMS = 2**13
"""Of a round, and so of a claim, whose leaves are one message."""

ItemField = Annotated[ItemNumber, Ge(0), Le(MAX_ITEM)]


def _canonical(ranges: "Ranges") -> "Ranges":
    if any(first >= end for first, end in ranges):
        raise ValueError("a range is empty")
    if any(end >= first for (_, end), (first, _) in pairwise(ranges)):
        raise ValueError("ranges must ascend, with a gap between two")
    return ranges


Ranges = Annotated[
    tuple[tuple[ItemField, ItemField], ...], Len(0, MAX_RANGES), AfterValidator(_canonical)
]
"""(first, end) of each; `end` is not in it."""


def ranges_of(items: Iterable[ItemNumber]) -> Ranges:
    """Canonical ranges of a set of numbers, given in any order."""
    found: list[tuple[ItemNumber, ItemNumber]] = []
    for item in sorted(set(items)):
        after = ItemNumber(item + 1)
        if found and found[-1][1] == item:
            found[-1] = (found[-1][0], after)
        else:
            found.append((item, after))
    return tuple(found)


def numbers_of(ranges: Ranges) -> tuple[ItemNumber, ...]:
    """The numbers in `ranges`, ascending. Bound `count` first where a stranger sent them."""
    return tuple(ItemNumber(item) for first, end in ranges for item in range(first, end))


def count(ranges: Ranges) -> int:
    """How many numbers are in `ranges`."""
    return sum(end - first for first, end in ranges)


def contains(ranges: Ranges, item: ItemNumber) -> bool:
    """Whether a number is in `ranges`."""
    place = bisect_right(ranges, item, key=lambda each: each[0])
    return place > 0 and item < ranges[place - 1][1]


@dataclass(frozen=True)
class Cursor:
    """Which items the seals so far cover. Begin with `Cursor()`."""

    next: ItemNumber = ItemNumber(0)  # above every number that is sealed
    unsealed: Ranges = ()  # below it

    def issue(self, n: int) -> tuple[ItemNumber, ...]:
        """The n items of a round, ascending: the unsealed ones first, then from `next` on."""
        reopened = numbers_of(self.unsealed)[:n]
        fresh = range(self.next, self.next + n - len(reopened))
        return (*reopened, *map(ItemNumber, fresh))

    def is_free(self, item: ItemNumber) -> bool:
        """Whether `item` is not sealed, and less than 2^16 beyond `next`."""
        if item < self.next:
            return contains(self.unsealed, item)
        return item < self.next + MAX_UNSEALED

    def after(self, sealed: Collection[ItemNumber]) -> "Cursor":
        """The cursor once `sealed`, each given once, are covered too.

        Raises:
            Malformed: one is not free, or what stays unsealed is more than a seal holds.
        """
        if not all(self.is_free(item) for item in sealed) or len(set(sealed)) != len(sealed):
            raise Malformed("an item is sealed already, named twice, or too far ahead")
        end = ItemNumber(max(self.next, max(sealed, default=-1) + 1))
        skipped = map(ItemNumber, range(self.next, end))
        unsealed = ranges_of({*numbers_of(self.unsealed), *skipped}.difference(sealed))
        if count(unsealed) > MAX_UNSEALED or len(unsealed) > MAX_RANGES:
            raise Malformed("too many items stay unsealed")
        return Cursor(end, unsealed)
