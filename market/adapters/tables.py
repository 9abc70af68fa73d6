"""Postgres tables, derived from the row classes of `market.service.rows`.

Bytes are bytea, amounts numeric(40, 0) (uint96 does not fit bigint), other integers bigint.
"""

import types
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any, Union, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from contracts.terms.amounts import BaseUnits, PricePerPflop
from market.service.rows import AUTOMATIC, ROWS, Row

NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}


class Whole(TypeDecorator[int]):
    """An integer of up to 40 digits."""

    impl = Numeric(40, 0)
    cache_ok = True

    def process_result_value(self, value: Any | None, dialect: Dialect) -> int | None:
        """Decimal to int."""
        return int(value) if isinstance(value, Decimal) else value


def metadata() -> MetaData:
    """All tables."""
    built = MetaData(naming_convention=NAMES)
    for cls in ROWS:
        _table(cls, built)
    return built


def _table(cls: type[Row], built: MetaData) -> Table:
    hints = get_type_hints(cls)
    columns = [_column(cls, field.name, hints[field.name]) for field in _fields(cls)]
    unique = [UniqueConstraint(*names) for names in cls.UNIQUE]
    indexes = [Index(None, *names) for names in cls.INDEX]
    return Table(cls.TABLE, built, *columns, *unique, *indexes)


def _fields(cls: type[Row]) -> Any:
    return fields(cls)  # type: ignore[arg-type]  # every row class is a dataclass


def _column(cls: type[Row], name: str, hint: Any) -> Column[Any]:
    nullable = get_origin(hint) in (Union, types.UnionType)
    plain = next(each for each in get_args(hint) if each is not type(None)) if nullable else hint
    if AUTOMATIC.get(cls) == name:
        return Column(name, BigInteger, Identity(), primary_key=True)
    kind = _kind(plain)
    if name in cls.KEY:
        return Column(name, kind, primary_key=True, autoincrement=False)
    return Column(name, kind, nullable=nullable)


def _kind(hint: Any) -> TypeEngine[Any]:
    if hint in (BaseUnits, PricePerPflop):
        return Whole()
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    known: Mapping[type, TypeEngine[Any]] = {
        bytes: LargeBinary(),
        bool: Boolean(),
        int: BigInteger(),
        str: Text(),
    }
    return known[hint]


METADATA = metadata()
"""What the migrations must add up to."""
