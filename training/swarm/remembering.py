"""What was answered about values that did not change since is not found out again.

One event changes few parts of a state, and `replace` keeps the others as they are. So a function of
such parts alone is asked about the same objects again and again, and needs one remembered answer.

Invariant: arguments are never changed in place, so an answer is what the function would say now.
"""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

Parts = TypeVarTuple("Parts")
Answer = TypeVar("Answer")


def last_answer(function: Callable[[*Parts], Answer]) -> Callable[[*Parts], Answer]:
    """`function`, computed anew only when one of its arguments is another object than last time."""
    last: tuple[tuple[*Parts], Answer] | None = None

    def answered(*parts: *Parts) -> Answer:
        nonlocal last
        known = last
        if known is None or not _are_same(known[0], parts):
            last = known = parts, function(*parts)
        return known[1]

    return answered


def _are_same(before: tuple[object, ...], now: tuple[object, ...]) -> bool:
    return all(one is other for one, other in zip(before, now, strict=True))
