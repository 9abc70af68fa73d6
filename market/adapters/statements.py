"""Statements of the row store, made once each: building them anew was seen in the API's profile.

A statement depends on a table and on a shape, never on values: those are bound parameters. Shapes
are few, as each is written down in a use case, so nothing that is kept has a bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Delete,
    Executable,
    Integer,
    Select,
    Table,
    and_,
    any_,
    bindparam,
    delete,
    func,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert

from market.adapters.tables import METADATA
from market.service.ports import Place
from market.service.rows import Row

Test: TypeAlias = Literal["null", "in", "is"]


@dataclass(frozen=True)
class Shape:
    """What a search looks like: its order, what it goes on behind, how each column is tested."""

    tests: tuple[tuple[str, Test], ...] = ()
    order: str = ""
    after: Literal["", "value", "place"] = ""
    is_limited: bool = False
    lock: bool = False


def shape_of(
    equals: Mapping[str, object],
    *,
    order: str = "",
    after: object = None,
    limit: int | None = None,
    lock: bool = False,
) -> Shape:
    """The shape of `Rows.where` with these arguments."""
    tests = tuple((name, _test_of(value)) for name, value in equals.items())
    behind: Literal["", "value", "place"] = ""
    if order and after is not None:
        behind = "place" if isinstance(after, Place) else "value"
    return Shape(tests, order, behind, limit is not None, lock)


def parameters_of(
    equals: Mapping[str, object], *, after: object = None, limit: int | None = None
) -> dict[str, object]:
    """Values for the statement of that shape; SQLAlchemy takes no notice of one too many."""
    found = {
        f"of_{name}": list(value) if isinstance(value, tuple) else value
        for name, value in equals.items()
        if value is not None
    }
    if isinstance(after, Place):
        found |= {"after": after.value}
        found |= {f"after_{place}": value for place, value in enumerate(after.key)}
    elif after is not None:
        found["after"] = after
    if limit is not None:
        found["most"] = limit
    return found


class Statements:
    """Those of one table."""

    def __init__(self, cls: type[Row]) -> None:
        self._key = cls.KEY
        self._names = tuple(field.name for field in fields(cls))  # type: ignore[arg-type]
        self._table: Table = METADATA.tables[cls.TABLE]
        self._searches: dict[Shape, Select[Any]] = {}
        self._counts: dict[Shape, Select[Any]] = {}
        self._numbered: dict[str, Executable] = {}
        self._unnumbered: dict[str, Insert] = {}
        self._later: dict[str, Executable] = {}

    def search(self, shape: Shape) -> Select[Any]:
        """Rows that fit."""
        if shape not in self._searches:
            self._searches[shape] = self._search(shape)
        return self._searches[shape]

    def count(self, shape: Shape) -> Select[Any]:
        """How many rows fit."""
        if shape not in self._counts:
            counted = select(func.count()).select_from(self._table)
            self._counts[shape] = counted.where(*self._conditions(shape))
        return self._counts[shape]

    @cached_property
    def one(self) -> Select[Any]:
        """The row with a key."""
        return select(self._table).where(*self._is_key())

    @cached_property
    def one_locked(self) -> Select[Any]:
        """The row with a key, for this transaction alone."""
        return self.one.with_for_update()

    @cached_property
    def removal(self) -> Delete:
        """Take the row with a key away."""
        return delete(self._table).where(*self._is_key())

    @cached_property
    def addition(self) -> Insert:
        """Add a row."""
        return self._insert(self._names)

    def numbered(self, automatic: str) -> Executable:
        """Add a row and answer with it, since the database fills the column `automatic`."""
        if automatic not in self._numbered:
            self._numbered[automatic] = self.unnumbered(automatic).returning(self._table)
        return self._numbered[automatic]

    def unnumbered(self, automatic: str) -> Insert:
        """Add a row whose column `automatic` the database fills."""
        if automatic not in self._unnumbered:
            names = tuple(name for name in self._names if name != automatic)
            self._unnumbered[automatic] = self._insert(names)
        return self._unnumbered[automatic]

    @cached_property
    def replacement(self) -> Insert:
        """Add a row, or put it in the place of the one with its key."""
        statement = self.addition
        changed = [name for name in self._names if name not in self._key]
        if not changed:
            return statement.on_conflict_do_nothing()
        new = {name: statement.excluded[name] for name in changed}
        return statement.on_conflict_do_update(index_elements=list(self._key), set_=new)

    def later(self, column: str) -> Executable:
        """Add a row, or put it in the place of the one with its key that has less in a column.

        Answers with its key if it did.
        """
        if column not in self._later:
            statement = self.addition
            new = {n: statement.excluded[n] for n in self._names if n not in self._key}
            later = statement.on_conflict_do_update(
                index_elements=list(self._key),
                set_=new,
                where=self._table.c[column] < statement.excluded[column],
            )
            self._later[column] = later.returning(*(self._table.c[name] for name in self._key))
        return self._later[column]

    def key(self, key: tuple[object, ...]) -> dict[str, object]:
        """Values of a key for `one` and `removal`."""
        return {f"of_{name}": value for name, value in zip(self._key, key, strict=True)}

    def values(self, row: Row) -> dict[str, object]:
        """A row by columns."""
        return {name: getattr(row, name) for name in self._names}

    def _search(self, shape: Shape) -> Select[Any]:
        statement = select(self._table).where(*self._conditions(shape))
        statement = statement.order_by(*self._order(shape))
        if shape.is_limited:
            statement = statement.limit(bindparam("most", type_=Integer))
        return statement.with_for_update(skip_locked=True) if shape.lock else statement

    def _insert(self, names: tuple[str, ...]) -> Insert:
        return insert(self._table).values({name: bindparam(name) for name in names})

    def _is_key(self) -> list[ColumnElement[bool]]:
        return [self._condition(name, "is") for name in self._key]

    def _condition(self, name: str, test: Test) -> ColumnElement[bool]:
        column = self._table.c[name]
        match test:
            case "null":
                return column.is_(None)
            case "in":
                # One array, so that thousands of values are one parameter of one statement.
                return column == any_(bindparam(f"of_{name}", type_=ARRAY(column.type)))
            case "is":
                return column == bindparam(f"of_{name}", type_=column.type)

    def _conditions(self, shape: Shape) -> list[ColumnElement[bool]]:
        found = [self._condition(name, test) for name, test in shape.tests]
        if shape.after:
            found.append(self._beyond(shape))
        return found

    def _beyond(self, shape: Shape) -> ColumnElement[bool]:
        column, key = self._sorted_by(shape), [self._table.c[name] for name in self._key]
        value = bindparam("after", type_=column.type)
        beyond = column < value if shape.order.startswith("-") else column > value
        if shape.after == "value":
            return beyond
        places = [bindparam(f"after_{n}", type_=each.type) for n, each in enumerate(key)]
        return or_(beyond, and_(column == value, tuple_(*key) > tuple_(*places)))

    def _order(self, shape: Shape) -> list[ColumnElement[Any]]:
        key: list[ColumnElement[Any]] = [self._table.c[name] for name in self._key]
        if not shape.order:
            return key
        column = self._sorted_by(shape)
        return [column.desc() if shape.order.startswith("-") else column, *key]

    def _sorted_by(self, shape: Shape) -> ColumnElement[Any]:
        return self._table.c[shape.order.removeprefix("-")]


_OF: dict[type[Row], Statements] = {}


def statements_of(cls: type[Row]) -> Statements:
    """Those of a table; the same ones every time."""
    if cls not in _OF:
        _OF[cls] = Statements(cls)
    return _OF[cls]


def _test_of(value: object) -> Test:
    if value is None:
        return "null"
    return "in" if isinstance(value, tuple) else "is"
