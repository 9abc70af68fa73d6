"""Does docs/protocol.md say what the code says of each message: its fields, with bounds?"""

import re
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Le, Len, Lt, MaxLen
from pydantic.fields import FieldInfo

from contracts.terms import messages
from contracts.terms.messages import MESSAGES, Record
from tests.architecture.checkout import ROOT

PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
SECTION = re.compile(r"^#### (\w+)(?: \(`([\w.]+)`\))?$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| .* \|$", re.MULTILINE)
CITATION = re.compile(r"docs/(protocol|architecture)\.md\s+(\d+)")
POWERS_FROM = 2**12

PARTS = {
    each.__name__: each
    for each in vars(messages).values()
    if isinstance(each, type) and issubclass(each, Record) and each.__module__ == messages.__name__
}


def sections() -> dict[str, str]:
    """The text under each heading that names a record."""
    found = list(SECTION.finditer(PROTOCOL))
    ends = [*(each.start() for each in found[1:]), len(PROTOCOL)]
    return {
        each[1]: PROTOCOL[each.end() : end].split("\n### ")[0]
        for each, end in zip(found, ends, strict=True)
    }


def test_protocol__every_message__is_there_with_its_version() -> None:
    said = {kind: name for name, kind in SECTION.findall(PROTOCOL) if kind}

    assert said == {kind: cls.__name__ for kind, cls in MESSAGES.items()}


@pytest.mark.parametrize("name", sorted(sections()))
def test_protocol__fields_and_bounds__are_those_of_the_code(name: str) -> None:
    rows = ROW.findall(sections()[name])

    assert rows == list(fields(PARTS[name]))


def fields(cls: type[Record]) -> Iterator[tuple[str, str]]:
    """Name and bounds of each field, as the document writes them."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return ((name, bounds(hints[name])) for name in cls.model_fields if name != "kind")


def bounds(hint: Any, said: Sequence[Any] = ()) -> str:
    """What a value of this type may be, in the words of the document."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return bounds(args[0], [*args[1:], *said])
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("none" if each is types.NoneType else bounds(each) for each in args)
    if hasattr(hint, "__supertype__"):
        return bounds(hint.__supertype__, said)
    if origin is tuple:
        return _of_many(args, said)
    if hint is bool:
        return "true or false"
    if hint is int:
        return _of_number(said)
    if hint is bytes:
        return f"{_length(said)[1]} bytes"
    if hint is str:
        return f"text, at most {_length(said)[1]}"
    return str(hint.__name__)


def _of_number(said: Sequence[Any]) -> str:
    lowest = highest = 0
    for each in said:
        match each:
            case Ge(ge=int(bound)):
                lowest = bound
            case Le(le=int(bound)):
                highest = bound
            case Lt(lt=int(bound)):
                highest = bound - 1
    return f"{number(lowest)} to {number(highest)}"


def _of_many(args: tuple[Any, ...], said: Sequence[Any]) -> str:
    if args[-1] is not ...:
        return f"({', '.join(map(bounds, args))})"
    lowest, highest = _length(said)
    return f"{lowest} to {number(highest)} of: {bounds(args[0])}"


def _length(said: Sequence[Any]) -> tuple[int, int]:
    for each in said:
        if isinstance(each, FieldInfo):
            return _length(each.metadata)
        if isinstance(each, Len):
            assert each.max_length is not None
            return each.min_length, each.max_length
        if isinstance(each, MaxLen):
            return 0, each.max_length
    raise AssertionError("a text or sequence without a bound")


def number(value: int) -> str:
    """A bound, as a power where it is one."""
    if value < 0:
        return f"-{number(-value)}"
    for more, text in ((0, ""), (1, " - 1")):
        power = value + more
        if power >= POWERS_FROM and power & (power - 1) == 0:
            return f"2^{power.bit_length() - 1}{text}"
    if value >= 10**6 and str(value).strip("0") == "1":
        return f"10^{len(str(value)) - 1}"
    return f"{value:,}"


def test_citations__of_sections__name_one_that_is_there() -> None:
    there = {
        (name, found)
        for name in ("protocol", "architecture")
        for found in re.findall(
            r"^## (\d+) ", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE
        )
    }
    files = [
        path
        for folder in ("contracts", "market", "training", "verification", "tallystick", "tests")
        for ending in ("py", "md", "sol", "toml")
        for path in (ROOT / folder).rglob(f"*.{ending}")
        if "node_modules" not in path.parts
    ]

    assert [
        f"{path.relative_to(ROOT)}: {cited}"
        for path in [*files, ROOT / "pyproject.toml"]
        for cited in CITATION.findall(path.read_text())
        if cited not in there
    ] == []
