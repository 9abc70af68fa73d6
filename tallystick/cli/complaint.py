"""How a verb says what is wrong: one line on standard error, or one JSON object under `-o json`.

The object has `code` (of `contracts.terms.errors`, or `usage`), `message`, `exit_code` and `data`,
what a program may act on. Several things that are wrong with one file are a line each before the
one line, and `errors` in `data`. Imported before any noun, so it imports next to nothing.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import typer

from contracts.terms.printable import printable

MAX_MESSAGE = 1000  # characters of an error that are shown
MAX_LISTED = 20  # things that are wrong with one file; a program gets all of them
USAGE = "usage"
"""Code of a command line that cannot be parsed; everything else has one of our errors' codes."""

_as_json = ContextVar("_as_json", default=False)


def expect_json(words: Sequence[str]) -> None:
    """Note whether these words of a command line ask for JSON; they may be wrong otherwise."""
    _as_json.set(asks_for_json(words))


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether the last `-o` or `--output` says json."""
    asked = ""
    for word, following in pairwise([*words, ""]):
        if word == "--":
            break
        if word in ("-o", "--output"):
            asked = following
        elif word.startswith("--output="):
            asked = word.removeprefix("--output=")
        elif word.startswith("-o"):
            asked = word.removeprefix("-o")
    return asked == "json"


def complain(
    message: str,
    exit_code: int,
    *,
    code: str = USAGE,
    data: Mapping[str, object] | None = None,
    word: str = "error",
) -> typer.Exit:
    """Say what is wrong, bounded and once; returns the exit to raise."""
    found = [] if data is None else _listed(data)
    if found and not _as_json.get():  # one below the other, before what they make together
        for each in found[:MAX_LISTED]:
            typer.echo(f"  {_bounded(each)}", err=True)
        message = message.partition("\n")[0].rstrip(":")
    line = _bounded(message)
    if _as_json.get():
        problem = {"code": code, "message": line, "exit_code": exit_code, "data": dict(data or {})}
        line = json.dumps(problem, default=_plain)
    else:
        line = f"{word}: {line}"
    typer.echo(line, err=True)
    return typer.Exit(exit_code)


def _listed(data: Mapping[str, object]) -> list[str]:
    """Everything that is wrong with a file, where that is several things: place, key, problem."""
    errors = data.get("errors")
    if not isinstance(errors, list) or len(errors) < 2:
        return []
    return [_place(each) for each in errors if isinstance(each, dict)]


def _place(error: Mapping[str, object]) -> str:
    line, column = error.get("line"), error.get("column")
    where = "" if line is None else f"line {line}, column {column}: "
    return f"{where}{error.get('key')}: {error.get('problem')}"


def _bounded(text: str) -> str:
    line = printable(" ".join(text.split()))
    if len(line) <= MAX_MESSAGE:
        return line
    return f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 2 :]}"


def _plain(value: Any) -> object:
    """What JSON has no form for: bytes as everywhere, anything else as people read it."""
    return value.hex() if isinstance(value, bytes) else _bounded(str(value))
