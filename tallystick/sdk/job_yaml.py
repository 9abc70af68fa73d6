"""Which values does a job file's text hold, and in which line does each of them stand?

YAML without what makes a small file large or deep, or says two things at once: at most 64 KiB, no
aliases, no field twice, no number that is read as another one. Lines and columns are counted from
1, as editors do.
"""

import decimal
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge

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
        Malformed: not YAML, or no mapping; data as of a wrong field (`job_errors`).
        Refused: it cannot be read.
    """
    loader = None
    try:
        loader = _Plain(_read(path))
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


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a device may never end
            what = "a folder" if path.is_dir() else "no file"
            raise Refused(f"cannot read {path}: it is {what}")
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no job file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise TooLarge(
            f"{path} is larger than any job file ({MAX_FILE_BYTES} bytes): name data, do not "
            "paste it",
            limit=MAX_FILE_BYTES,
        )
    return text


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
