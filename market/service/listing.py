"""Pages of a list, and the opaque cursor that says where the next one begins.

A cursor is a place, the value that the list is sorted by and the key of the last row shown, and no
number of rows: so a row is shown once, however many are inserted before it meanwhile.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, TooLarge
from market.bodies.base import LIST_PAGE
from market.service.ports import Place, UnitOfWork
from market.service.rows import Row

R = TypeVar("R", bound=Row)

_MAX_BYTES = 400


@dataclass(frozen=True)
class Asked:
    """Which part of a list."""

    limit: int
    cursor: str | None


FIRST = Asked(LIST_PAGE, None)
"""The first part."""


@dataclass(frozen=True)
class Part(Generic[R]):
    """Rows, and the cursor of those that follow; None at the end."""

    rows: list[R]
    next: str | None


@dataclass(frozen=True)
class Listing(Generic[R]):
    """A table in an order: `column`, or `-column`."""

    cls: type[R]
    order: str

    async def part(
        self,
        asked: Asked,
        work: UnitOfWork,
        keep: Callable[[R], bool] = lambda row: True,
        **equals: Any,
    ) -> Part[R]:
        """The part that was asked for, of rows that `keep` admits.

        Raises:
            Malformed: the cursor is none of this list.
        """
        place = None if asked.cursor is None else self._place(asked.cursor)
        found: list[R] = []
        while len(found) <= asked.limit:
            rows = await work[self.cls].where(
                order=self.order, after=place, limit=asked.limit + 1, **equals
            )
            found += [row for row in rows if keep(row)]
            if len(rows) <= asked.limit:
                break
            place = self._behind(rows[-1])
        shown = found[: asked.limit]
        more = len(found) > asked.limit
        return Part(shown, self._cursor(self._behind(shown[-1])) if more else None)

    def _behind(self, row: R) -> Place:
        key = tuple(getattr(row, name) for name in self.cls.KEY)
        return Place(getattr(row, self.order.removeprefix("-")), key)

    def _cursor(self, place: Place) -> str:
        values: list[Any] = [self.cls.TABLE, place.value, *place.key]
        return base64.urlsafe_b64encode(encode(values)).decode().rstrip("=")

    def _place(self, cursor: str) -> Place:
        try:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            match decode(data, max_bytes=_MAX_BYTES):
                case [self.cls.TABLE, *values]:
                    first, *key = _typed(values, self._kinds())
                    return Place(first, tuple(key))
        except (binascii.Error, TooLarge, Malformed) as error:
            raise Malformed("cursor: none of this list", field="cursor") from error
        raise Malformed("cursor: none of this list", field="cursor")

    def _kinds(self) -> tuple[type, ...]:
        hints = get_type_hints(self.cls)
        names = (self.order.removeprefix("-"), *self.cls.KEY)
        return tuple(_plain(hints[name]) for name in names)


def _plain(hint: Any) -> type:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    assert isinstance(hint, type)
    return hint


def _typed(values: list[Value], kinds: tuple[type, ...]) -> list[Value]:
    if len(values) != len(kinds):
        raise Malformed("another number of values")
    return [_of_kind(value, kind) for value, kind in zip(values, kinds, strict=True)]


def _of_kind(value: Value, kind: type) -> Value:
    if kind is int and isinstance(value, bytes):  # so an amount above 2^63 is encoded
        value = int.from_bytes(value, "big")
    if type(value) is not kind:
        raise Malformed("a value of another type")
    return value
