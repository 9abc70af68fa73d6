"""How a verb answers: its payload on standard output, everything else on standard error.

Each verb declares by `shows` the body that it answers with and which field of it is rows. From that
come its options `-o/--output` and `-q/--quiet`, its JSON document, its CSV, and the JSON Schema
that `tallystick schema` prints. A verb returns its body; one that says it before it is over calls
`answer` itself. What is no payload goes through `notice` or `screen`.

Texts that others chose stand in most answers. Here, and nowhere before, they are made safe for who
reads them: a line or a cell is `printable`, a cell of a CSV file is no formula, JSON is ASCII.
"""

import csv
import functools
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, get_args

import typer
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from contracts.settings import expanded
from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens
from contracts.terms.errors import Malformed
from contracts.terms.printable import printable
from market.bodies.base import Body

_LAST_YEAR = datetime(9998, 12, 31, tzinfo=UTC).timestamp()
"""What a stranger says is later is shown as this: `datetime` knows no more, in any zone."""
_FORMULA = tuple("=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH COMMERCIAL AT}")
_CELL_IN_A_CELL = re.compile(rf"(;\s*)(?=[{re.escape(''.join(_FORMULA))}])")
"""Where cells are read as parted by semicolons, as many countries' spreadsheets do."""
"""With what a spreadsheet takes a text for a formula."""

B = TypeVar("B", bound=Body)
P = ParamSpec("P")

Show = Callable[[str, RenderableType], None]
"""Shows something as a line, or as a picture of it."""
Lines = Callable[[B], Iterable[RenderableType]]


class Format(StrEnum):
    """How a payload looks."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Output = Annotated[
    Format, typer.Option("-o", "--output", help="How the answer looks.", show_default=True)
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Say nothing but the answer and errors.")
]


@dataclass(frozen=True)
class Shows(Generic[B]):
    """What a verb answers with."""

    body: type[B]
    lines: Lines[B]
    rows: str | None  # the field whose entries are rows of a CSV file

    @property
    def row(self) -> type[BaseModel] | None:
        """What one row is."""
        if self.rows is None:
            return None
        row: type[BaseModel] = get_args(self.body.model_fields[self.rows].annotation)[0]
        return row

    def schema(self) -> JsonSchemaValue:
        """JSON Schema of the document under `-o json`."""
        if self.body is Body:  # of any kind
            return {"$schema": GenerateJsonSchema.schema_dialect, "type": "object"}
        schema = TypeAdapter(self.body).json_schema(mode="serialization")
        return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


@dataclass
class _Call:
    """The call of a verb that is running."""

    shows: Shows[Any]
    format: Format = Format.TABLE
    quiet: bool = False
    answered: bool = field(default=False)


_NO_ROWS = "-o csv: this answer has no rows; choose table or json"
_call: ContextVar[_Call] = ContextVar("_call")


# --------------------------------------------------------------------------------- declaration


def shows(
    body: type[B], *, lines: Lines[B], rows: str | None = None
) -> Callable[[Callable[P, B | None]], Callable[P, None]]:
    """Declare what a verb answers with; it gets the options `-o` and `-q`.

    Args:
        body: What the verb returns, and what is printed under `-o json`.
        lines: The body for people.
        rows: The field of it that `-o csv` prints, where the body does not say it itself.
    """
    declared = Shows(body, lines, rows or getattr(body, "rows", None))

    def declare(verb: Callable[P, B | None]) -> Callable[P, None]:
        @functools.wraps(verb)
        def called(*arguments: P.args, **options: P.kwargs) -> None:
            call = _Call(declared, options.pop("output"), options.pop("quiet"))  # type: ignore[arg-type]
            if call.format is Format.CSV and declared.row is None and body is not Body:
                raise Malformed(_NO_ROWS)
            before = _call.set(call)
            try:
                found = verb(*arguments, **{name: _path(each) for name, each in options.items()})
                if found is not None:
                    answer(found)
            finally:
                _call.reset(before)

        called.__signature__ = _with_options(verb)  # type: ignore[attr-defined]
        called.shows = declared  # type: ignore[attr-defined]
        return called

    return declare


def _path(value: object) -> Any:
    """What an option says; no shell expands the `~` of `--home=~/p` or of a quoted path."""
    return expanded(value) if isinstance(value, Path) else value


def declared_by(verb: Callable[..., object]) -> Shows[Any] | None:
    """What a verb answers with, if it declares it."""
    found = getattr(verb, "shows", None)
    return found if isinstance(found, Shows) else None


def _with_options(verb: Callable[..., object]) -> inspect.Signature:
    named = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(verb, eval_str=True)
    return signature.replace(
        parameters=[
            *signature.parameters.values(),
            inspect.Parameter("output", named, default=Format.TABLE, annotation=Output),
            inspect.Parameter("quiet", named, default=False, annotation=Quiet),
        ]
    )


# -------------------------------------------------------------------------------------- payload


def answer(body: Body, lines: Iterable[RenderableType] | None = None) -> None:
    """Print the payload; `lines` is how people read it where the body alone does not say."""
    call = _call.get()
    assert not call.answered and isinstance(body, call.shows.body), body
    call.answered = True
    match call.format:
        case Format.JSON:
            typer.echo(body.model_dump_json(indent=2, ensure_ascii=True))
        case Format.CSV:
            typer.echo(_csv(body, call.shows), nl=False)
        case Format.TABLE:
            _print(call.shows.lines(body) if lines is None else lines)


def _print(lines: Iterable[RenderableType]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    for line in lines:
        if isinstance(line, str):
            # Whole, however narrow the terminal: it may be copied from there.
            typer.echo(printable(line))
        else:
            console.print(line)


def _csv(body: Body, declared: Shows[Any]) -> str:
    if declared.body is Body:  # whatever it is
        declared = Shows(type(body), declared.lines, getattr(type(body), "rows", None))
    row, text = declared.row, io.StringIO()
    if row is None or declared.rows is None:
        raise Malformed(_NO_ROWS)
    money = {name for name, each in row.model_fields.items() if _is_money(each.annotation)}
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(f"{name}_tokens" if name in money else name for name in row.model_fields)
    for each in body.model_dump(mode="json")[declared.rows]:
        writer.writerow(_cell(value, is_money=name in money) for name, value in each.items())
    return text.getvalue()


def _is_money(annotation: Any) -> bool:
    """Whether a field is an amount or a price: base units for programs, tokens in a spreadsheet."""
    return annotation in (BaseUnits, PricePerPflop) or any(map(_is_money, get_args(annotation)))


def _cell(value: object, *, is_money: bool) -> object:
    """A cell: what is no text or number is JSON, nothing is empty, no text is a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    if is_money:
        return format_tokens(int(str(value)))
    if isinstance(value, str):
        text = _CELL_IN_A_CELL.sub(r"\1'", printable(value))
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return value


# --------------------------------------------------------------------------------- for people


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Rows under a header, narrow enough for 80 columns; columns that begin with # are numbers."""
    found = Table(title=title or None, box=None, pad_edge=False, title_justify="left")
    for column in columns:
        is_number = column.startswith("#")
        name = column.removeprefix("#")
        found.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        found.add_row(*map(_lines_of, row))
    return found


def facts(title: str, rows: Mapping[str, str | Sequence[str]]) -> Table:
    """Names and values; a value may have several lines."""
    found = Table(
        show_header=False,
        title=printable(title) or None,
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,  # so that a name of 64 digits stands in one line of 80 columns
    )
    found.add_column()
    found.add_column(overflow="fold")
    for name, value in rows.items():
        found.add_row(printable(name), _lines_of(value))
    return found


def _lines_of(cell: object) -> str:
    """What stands in a cell: a line, or each of several."""
    return "\n".join(map(printable, cell if isinstance(cell, list | tuple) else [str(cell)]))


def short(name: bytes) -> str:
    """The first digits of a name, for a list; all of them are in the JSON."""
    return name.hex()[:12]


def sent_lines(transaction: bytes | None) -> Iterator[str]:
    """The transaction that did it, if one was sent."""
    if transaction is not None:
        yield f"transaction 0x{transaction.hex()}"


def moment(millis: int) -> str:
    """When something was or will be, UTC."""
    return f"{_read(millis):%Y-%m-%d %H:%M:%S}"


def _read(millis: int) -> datetime:
    return datetime.fromtimestamp(min(millis / 1000, _LAST_YEAR), UTC)


def moment_here(millis: int) -> str:
    """A moment in UTC and, where this machine's zone is another one, in that too."""
    here = _read(millis).astimezone()
    if not here.utcoffset():
        return f"{moment(millis)} UTC"
    return f"{moment(millis)} UTC ({here:%Y-%m-%d %H:%M:%S %Z})"


# ------------------------------------------------------------------------------ everything else


def notice(line: str) -> None:
    """Tell a person something that is no payload."""
    if not _is_quiet():
        typer.echo(printable(line), err=True)


def _is_quiet() -> bool:
    call = _call.get(None)
    return call is not None and call.quiet


@contextmanager
def screen() -> Iterator[Show]:
    """Shows what changes: a picture in place on a terminal, a line a change elsewhere."""
    if _is_quiet() or not sys.stderr.isatty():
        yield _once_each()
        return
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with Live(console=console, auto_refresh=False) as live:
        yield lambda line, picture: live.update(picture, refresh=True)


def _once_each() -> Show:
    said = [""]

    def show(line: str, picture: RenderableType) -> None:
        if line != said[0]:
            notice(line)
        said[0] = line

    return show
