"""How any body reads for people: its values by name, then its lists as tables.

How a value looks follows from the type of its field; which columns a table has, from `columns` of
the body that a row is, or else it has all that fit into a cell.
"""

from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from rich.console import RenderableType

from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens
from contracts.terms.ids import Address
from contracts.terms.messages import MILLION
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.base import Body
from tallystick.cli.output import facts, moment, short, table

_MILLIONTHS = "_millionths"
_BY_TYPE: dict[Any, Callable[[Any], str]] = {
    BaseUnits: format_tokens,
    PricePerPflop: format_tokens,
    UnixMillis: moment,
    UnixSeconds: lambda seconds: moment(1000 * seconds),
    Address: lambda account: f"0x{short(account)}",
}


def lines_of(body: Body) -> Iterator[RenderableType]:
    """Return the values of a body, then each of its lists as a table."""
    plain: dict[str, str] = {}
    lists = []
    for name, field in type(body).model_fields.items():
        value, kind = getattr(body, name), _kind(field.annotation)
        row = _row(kind)
        if row is not None:
            lists.append((name, row, value or ()))
        elif isinstance(value, Body):
            plain |= {f"{_words(name)}: {inner}": text for inner, text in _facts(value).items()}
        elif value is not None:
            plain[_words(name)] = _cell(name, value, kind, whole=True)
    if plain:
        yield facts("", plain)
    for name, row, rows in lists:
        yield rows_table(_words(name) if plain or len(lists) > 1 else "", row, rows)


def rows_table(title: str, row: type[BaseModel], rows: Any) -> RenderableType:
    """Return rows of one type as a table."""
    kinds = {name: _kind(field.annotation) for name, field in row.model_fields.items()}
    names = getattr(row, "columns", ()) or [name for name in kinds if _fits(kinds[name])]
    heads = [f"#{_words(name)}" if _is_number(kinds[name]) else _words(name) for name in names]
    cells = ([_cell(name, getattr(each, name), kinds[name]) for name in names] for each in rows)
    return table(title, heads, cells)


def _cell(name: str, value: Any, kind: Any, *, whole: bool = False) -> str:
    """A field as people read it; what is counted in millionths is a decimal fraction."""
    if name.endswith(_MILLIONTHS) and value is not None:
        return f"{value / MILLION:.4f}"
    return _text(value, kind, whole=whole)


def _facts(body: Body) -> dict[str, str]:
    fields = type(body).model_fields.items()
    return {
        _words(name): _cell(name, getattr(body, name), _kind(field.annotation), whole=True)
        for name, field in fields
    }


def _text(value: Any, kind: Any, *, whole: bool = False) -> str:
    """A value as people read it; a name of bytes is cut where it is not `whole`."""
    if value is None:
        return ""
    if isinstance(value, bytes) and whole:
        return f"0x{value.hex()}" if kind is Address else value.hex()
    if kind in _BY_TYPE:
        return _BY_TYPE[kind](value)
    if isinstance(value, bytes):
        return short(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(_text(each, None) for each in value)
    return value.model_dump_json() if isinstance(value, BaseModel) else str(value)


def _kind(annotation: Any) -> Any:
    """The type of a field, without None and what is annotated to it."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _kind(next(each for each in get_args(annotation) if each is not NoneType))
    return annotation


def _row(kind: Any) -> type[BaseModel] | None:
    """What an entry of a list is, if it is a body."""
    entry = get_args(kind)[0] if get_origin(kind) is tuple else None
    return entry if isinstance(entry, type) and issubclass(entry, BaseModel) else None


def _fits(kind: Any) -> bool:
    """Whether a value fits into a cell: no list, no body, no encoded message."""
    return (
        get_origin(kind) not in (tuple, dict)
        and kind is not bytes
        and not (isinstance(kind, type) and issubclass(kind, BaseModel))
    )


def _is_number(kind: Any) -> bool:
    while hasattr(kind, "__supertype__") and kind not in (UnixMillis, UnixSeconds):
        kind = kind.__supertype__
    return kind is int


def _words(name: str) -> str:
    return name.removesuffix(_MILLIONTHS).replace("_", " ")
