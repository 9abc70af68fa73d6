"""What does a job file's text say, in which lines, and what is wrong with it, all of it at once?

YAML without what makes a small file large or deep, or says two things at once: at most 64 KiB, no
aliases, no field twice, no number that is read as another one. Lines and columns are counted from
1, as editors do.

A complaint says where, what was given, and what would be right. Its words come from the JSON schema
of the fields (`job_file.job_schema`), so a bound is written down once.
"""

import decimal
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from contracts.terms.errors import Malformed
from tallystick.reading import read_whole

# -------------------------------------------------------------------------------- values and lines

MAX_FILE_BYTES = 64 * 2**10
MAX_DEPTH = 8

Path_ = tuple[str | int, ...]
"""Where a value is: names of fields, and places in lists."""


@dataclass(frozen=True)
class Place:
    """A position in a file."""

    line: int
    column: int


@dataclass(frozen=True)
class Text:
    """A parsed file: its fields, and where each of them stands."""

    fields: Mapping[str, Any]
    places: Mapping[Path_, Place]

    def place(self, path: Path_) -> Place:
        """Where `path` stands, or what holds it where it is not there."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(1, 1))


def read_text(path: Path) -> Text:
    """The fields of a job file.

    Raises:
        NotFound: no such file.
        TooLarge: over 64 KiB.
        Malformed: not YAML, or no mapping; data as of a wrong field (see `Complaint`).
        Refused: it cannot be read.
    """
    loader = None
    try:
        loader = _Plain(read_whole(path, MAX_FILE_BYTES, what="job file"))
        node = loader.get_single_node()
        fields = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise _no_yaml(path, error) from error
    finally:
        if loader is not None:
            loader.dispose()
    if node is None or not isinstance(fields, dict):
        raise Malformed(f"{path}: a job file is a mapping of fields, e.g. `name: my job`")
    return Text(fields, dict(_places(node, ())))


def _no_yaml(path: Path, error: Exception) -> Malformed:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Malformed(f"{path}: not YAML: {error}")
    found = {"line": mark.line + 1, "column": mark.column + 1, "key": "", "problem": str(error)}
    return Malformed(f"{path}: line {mark.line + 1}: not YAML: {error}", errors=[found])


def _places(node: yaml.Node, path: Path_) -> Iterator[tuple[Path_, Place]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            yield inner, _place(key)
            yield from _places(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield (*path, number), _place(value)
            yield from _places(value, (*path, number))


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


class _Plain(yaml.SafeLoader):
    """YAML without aliases, deep nests and fields that are there twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, each of which could stand for everything before it, and deep nests."""
        if self.check_event(yaml.AliasEvent):
            raise _at(self, "a job file has no aliases (*name): write the value out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _at(self, f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Refuse a number that YAML 1.1 or a float would turn into another one."""
        is_whole = node.tag.endswith(":int")
        read = self.construct_yaml_int if is_whole else self.construct_yaml_float
        value: int | float = read(node)
        written = node.value.replace("_", "").lstrip("+")
        if not _same(written, value):
            raise _at(node, f"{node.value:.40} would be read as {value!r:.40}: write that")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a field that is there twice."""
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise _at(key, f"{key.value!r:.80} is there twice")
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _same(written: str, value: int | float) -> bool:
    """Whether a number is what its digits say; 0x10 and .inf are, 010, 1:30 and 0.1...1 are not."""
    if written.lower().startswith(("0x", "-0x", "0b", "-0b")) or not math.isfinite(value):
        return True
    try:
        return Decimal(written) == Decimal(repr(value)) and not re.match(r"-?0[0-9]", written)
    except decimal.InvalidOperation:
        return False


for _kind in ("int", "float"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _Plain.construct_number)


def _at(where: Any, problem: str) -> yaml.YAMLError:
    """A refusal of a node, or of what a loader is about to read."""
    mark = where.start_mark if isinstance(where, yaml.Node) else where.peek_event().start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


# -------------------------------------------------------------------------------------- complaints

MAX_GIVEN = 60  # characters of a value that are shown
TAGS = frozenset({"text", "list", "other"})
"""Names of alternatives that pydantic puts into a path, and nobody wrote into a file."""
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "object": "fields, e.g. {name: value}",
    "array": "a list, e.g. [a, b]",
}


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong; line and column are None where there is no file."""

    line: int | None
    column: int | None
    key: str
    given: str
    problem: str

    def __str__(self) -> str:
        where = "" if self.line is None else f"line {self.line}: "
        return f"{where}{self.key}: {self.problem}"


def complain(
    source: str, error: ValidationError, schema: Mapping[str, Any], text: Text | None
) -> Malformed:
    """Everything that `error` found in the file `source`, as one refusal; data: `errors`."""
    found = error.errors(include_url=False)
    complaints = [_complaint(each, schema, text) for each in found]
    complaints.sort(key=lambda each: (each.line or 0, each.column or 0, each.key))
    count = f"{len(complaints)} problems:\n" if len(complaints) > 1 else ""
    lines = ";\n".join(map(str, complaints))
    return Malformed(f"{source}: {count}{lines}", errors=[asdict(each) for each in complaints])


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` where something known looks like `name`, else nothing."""
    close = difflib.get_close_matches(name[:MAX_GIVEN], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _complaint(detail: Any, schema: Mapping[str, Any], text: Text | None) -> Complaint:
    path: Path_ = tuple(part for part in detail["loc"] if part not in TAGS)
    place = None if text is None else text.place(path)
    return Complaint(
        line=None if place is None else place.line,
        column=None if place is None else place.column,
        key=".".join(map(str, path)),
        given="" if detail["type"] == "missing" else _shown(detail["input"]),
        problem=_problem(detail, path, schema),
    )


def _problem(detail: Any, path: Path_, schema: Mapping[str, Any]) -> str:
    kind, field = detail["type"], _field(schema, path)
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), path[:-1], schema)
    if kind == "missing":
        return f"is missing: {field.get('description', 'it is needed')}{_example(field)}"
    given = _shown(detail["input"])
    if kind == "value_error":
        return f"{detail['msg'].removeprefix('Value error, ')}; given is {given}"
    wanted = _wanted(field, schema)
    return f"{wanted or detail['msg']} is wanted, not {given}{_hint(field, detail['input'])}"


def _unknown(name: str, above: Path_, schema: Mapping[str, Any]) -> str:
    """Says where the field belongs, if it is one of another place, or what looks like it."""
    known = _names(_resolved(_field(schema, above), schema))
    here = f"; there are: {', '.join(known)}"
    return f"unknown field {name!r:.80}" + (
        _place_of(name, above, schema) or nearest(name, known) or here
    )


def _place_of(name: str, above: Path_, schema: Mapping[str, Any]) -> str:
    """`; it belongs ...` where a field of this very name stands elsewhere in a job file."""
    top = _names(schema)
    if above and name in top:
        return "; it belongs at the top of the file"
    for section in top:
        if (section,) != above and name in _names(_resolved(_field(schema, (section,)), schema)):
            return f"; it belongs under `{section}`"
    return ""


def _names(holder: Mapping[str, Any]) -> list[str]:
    return list(holder.get("properties", ()))


def _field(schema: Mapping[str, Any], path: Sequence[str | int]) -> Mapping[str, Any]:
    """The schema of what stands at `path`; an empty one where it says nothing."""
    found: Mapping[str, Any] = schema
    for part in path:
        holder = _resolved(found, schema)
        within = holder.get("items", {}) if isinstance(part, int) else holder.get("properties", {})
        found = within if isinstance(part, int) else within.get(part, {})
    return found if path and "description" in found else _resolved(found, schema)


def _resolved(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`field`, or that alternative of it which has fields or items of its own."""
    for each in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
        if "$ref" in each:
            named: Mapping[str, Any] = schema["$defs"][each["$ref"].rpartition("/")[2]]
            return named
        if "items" in each:
            return dict(each)
    return field


def _wanted(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What `field` takes, in words."""
    alternatives = field.get("anyOf") or field.get("oneOf")
    if alternatives:
        words = [_wanted(each, schema) for each in alternatives if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(filter(None, words)))
    if "$ref" in field:
        return _KINDS["object"]
    if choices := field.get("enum"):
        return f"one of {', '.join(each for each in choices if isinstance(each, str))}"
    kind = _KINDS.get(field.get("type", ""), "")
    return kind + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    above, below = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    longest = field.get("maxLength")
    parts = [
        "" if above is None else f"above {above}",
        f"{low} to {high}" if low is not None and high is not None else "",
        f"{low} or more" if low is not None and high is None else "",
        f"at most {high}" if high is not None and low is None else "",
        "" if below is None else f"below {below}",
        "" if longest is None else f"{field.get('minLength', 0)} to {longest} characters",
    ]
    said = " and ".join(filter(None, parts))
    return f" ({said})" if said else ""


def _hint(field: Mapping[str, Any], given: object) -> str:
    kinds = {each.get("type") for each in (field, *field.get("anyOf", ()))}
    if "number" in kinds and isinstance(given, str):
        return "; YAML reads 1e-3 as text: write 1.0e-3"
    return ""


def _example(field: Mapping[str, Any]) -> str:
    examples = field.get("examples") or ()
    return f", e.g. {examples[0]}" if examples else ""


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # more digits than Python prints
        shown = "a very long number"
    return shown if len(shown) <= MAX_GIVEN else shown[:MAX_GIVEN] + "..."
