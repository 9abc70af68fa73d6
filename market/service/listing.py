"""Pages of a list, and the opaque cursor that says where the next one begins.

A cursor is a place, the value that the list is sorted by and the key of the last row shown, and no
number of rows: so a row is shown once, however many are inserted before it meanwhile.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import GenericAlias
from typing import Any, Generic, Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from contracts.terms.errors import Malformed
from market.bodies.base import LIST_PAGE
from market.service.ports import Place, UnitOfWork
from market.service.rows import Row

R = TypeVar("R", bound=Row)

_STRICT = ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")


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
    most: int = 2**63 - 1  # that the column holds, if it holds numbers

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
        values = (self.cls.TABLE, place.value, *place.key)
        return base64.urlsafe_b64encode(self._spelling.dump_json(values)).decode().rstrip("=")

    def _place(self, cursor: str) -> Place:
        try:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            _, first, *key = self._spelling.validate_json(data)
            if isinstance(first, int) and not 0 <= first <= self.most:
                raise ValueError(f"{self.order} is never {first}")
        except ValueError as error:
            raise Malformed("cursor: none of this list", field="cursor") from error
        return Place(first, tuple(key))

    @cached_property
    def _spelling(self) -> TypeAdapter[tuple[Any, ...]]:
        """The name of the table, then what a place holds."""
        hints = get_type_hints(self.cls)
        names = (self.order.removeprefix("-"), *self.cls.KEY)
        spelled: Any = GenericAlias(tuple, (Literal[self.cls.TABLE], *(hints[n] for n in names)))
        return TypeAdapter(spelled, config=_STRICT)
