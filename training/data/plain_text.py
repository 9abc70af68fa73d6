"""Is a file the text that a model should learn, or something that would be misread as text? Pure.

Bytes are trained as they are, so markup, compression and containers would be learned with the text
or instead of it. Foreign formats are told by their first bytes (`training/content.py`). Records are
told by what parses as JSON, tables by rows that are as long as their header; of a large file only
its start and single lines are looked at.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from contracts.terms.errors import Refused
from training.content import LOOKED_AT, UTF8_MARK, Kind, ends_early, what_is

_CHAT_FIELDS = ("messages", "conversations", "conversation")
_TEXT_FIELDS = ("text", "content", "body", "story", "completion")
_KNOWN_COLUMN = re.compile(
    "text|content|body|story|completion|id|title|name|label|date|author|url|category|summary|"
    "prompt|response|question|answer|input|output|instruction|context|source|target|sentence|"
    "comment|review|rating|score|message|class",
    re.IGNORECASE,
)
_COLUMN = re.compile(r"(?! )[^\W\d][\w .()/%#-]{0,39}(?<! )")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?")
_ROWS_LOOKED_AT = 200
_LINES_LOOKED_AT = 64  # of a large file
_LONG_LINE = 2**16  # a longer one is not parsed
_MOST_OF = 0.8  # of the lines, or all but a few rows of a table
_BETWEEN = re.compile(r"[\s,]*")
_BEGUN = re.compile(r'\{\s*"([^"\\]|\\.){0,200}"\s*:')
_OF_PRETTY = re.compile(r'\s*([][{}]+|"([^"\\]|\\.)*"\s*:.*|"([^"\\]|\\.)*"),?\s*')
_BEGINS_WITHIN = "it begins within a record: cut files between records, then "


def need_plain_text(name: str, data: bytes) -> None:
    """Refuse a file that is no plain UTF-8 text; a byte order mark of UTF-8 is allowed.

    Args:
        name: Of the file, for the refusal.
        data: All of it.

    Raises:
        Refused: with what it is, and what to do.
    """
    need_plain_start(name, data[:LOOKED_AT])
    if (at := data.find(0)) >= 0:
        raise _refusal(name, Kind(f"binary (a zero byte at {at})", "give UTF-8 text files"))
    if (wrong := _undecodable(data)) is not None:
        kind = f"no UTF-8 text (byte 0x{data[wrong]:02x} at {wrong})"
        remedy = "convert it, for example with `iconv -f LATIN1 -t UTF-8`"
        if wrong >= len(data) - 3:
            remedy += "; if it was cut within its last character, cut it at a line's end"
        raise _refusal(name, Kind(kind, remedy))
    if (kind_of_lines := _record_lines(_some_lines(data))) is not None:
        raise _refusal(name, kind_of_lines)


def need_plain_start(name: str, start: bytes) -> None:
    """Refuse a file of any size by its first `LOOKED_AT` bytes; raises Refused."""
    text = start.removeprefix(UTF8_MARK).decode(errors="ignore").strip()
    kind = what_is(start) or _values(text) or _pieces_of_pretty(text) or _table(text)
    if kind is not None:
        raise _refusal(name, kind)


def _refusal(name: str, kind: Kind) -> Refused:
    return Refused(
        f"data: {name} is {kind.name}, which would be trained as it stands: {kind.remedy}"
    )


def _undecodable(data: bytes) -> int | None:
    """Where the first byte is that UTF-8 cannot have there."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, max(len(data), 1), LOOKED_AT):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(data[at : at + LOOKED_AT], final=at + LOOKED_AT >= len(data))
        except UnicodeDecodeError as error:
            return at - pending + error.start
    return None


# ------------------------------------------------------------------------------------- records


def _values(text: str) -> Kind | None:
    """Of JSON values, one after the other or in a list, whose end may be missing."""
    values = _parsed_from(text, 0)
    if values is not None and len(values) == 1 and isinstance(values[0], list):
        return _kind_of(values[0], "a JSON document", ".[]")
    if values is None and text.startswith("["):
        return _kind_of(_parsed_from(text, 1) or [], "a JSON document", ".[]")
    if values is None or len(values) == 1:
        return _kind_of(values or [], "a JSON document", ".")
    in_lines = text.partition("\n")[0].rstrip(", ").endswith(("}", "]", '"', "null"))
    if all(isinstance(value, str) for value in values) and "\\" not in text:
        return None  # lines in quotation marks, as people write them
    return _kind_of(values, "JSON lines" if in_lines else "JSON objects, one after the other", ".")


def _parsed_from(text: str, at: int) -> list[Any] | None:
    """The values from `at` on, an object that is cut as {}; None if there is something else."""
    decoder, found = json.JSONDecoder(), list[Any]()
    while (at := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        if at == len(text) - 1 and text[at] == "]":
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if text[at] not in '{["' or not ends_early(error):
                return None
            return [*found, {}] if _BEGUN.match(text, at) else found or None
        except (ValueError, RecursionError):
            return None
        found.append(value)
    return found


def _kind_of(values: Sequence[Any], kind: str, path: str) -> Kind | None:
    """Of values that hold text; None if they are numbers and the like."""
    records = [value for value in values if isinstance(value, dict)]
    if records:
        return _of_records(next(filter(None, records), {}), kind, path)
    if any(isinstance(value, list) and _kind_of(value, kind, path) for value in values):
        return Kind(
            f"{kind} of lists", "write its texts alone, for example with `jq -r '..|strings'`"
        )
    texts = sum(isinstance(value, str) for value in values)
    if path == ".[]" and texts:
        return Kind("a JSON list of texts", "write the texts alone, for example with `jq -r '.[]'`")
    if texts > 1:
        return Kind(
            "JSON texts, one after the other", "write them without quotes, with `jq -r '.'`"
        )
    return None


def _of_records(record: dict[str, Any], kind: str, path: str) -> Kind:
    for field in _CHAT_FIELDS:
        if isinstance(record.get(field), list):
            return Kind(
                f"{kind} of chats",
                "train on them with `objective: sft`, or write the turns as text, for example with "
                f"`jq -r '{_joined(path, field)}[]|.role+\": \"+.content'`",
            )
    texts = [name for name, value in record.items() if isinstance(value, str)]
    field = _text_of(texts) or "text"
    command = f"`jq -r '{_joined(path, field)}'`"
    return Kind(kind, f"write its text alone into a file, for example with {command}")


def _text_of(names: Sequence[str]) -> str | None:
    return next((name for name in _TEXT_FIELDS if name in names), next(iter(names), None))


def _joined(path: str, field: str) -> str:
    """The path of `jq` to a field of what `path` names."""
    dotted = "." if path == "." else f"{path}|."
    return dotted + (field if re.fullmatch(r"\w{1,40}", field) else "[]")


def _some_lines(data: bytes) -> list[bytes]:
    """All lines of a file that are not empty; of a large one single lines from all over it."""
    if len(data) <= LOOKED_AT:
        lines: Iterable[bytes] = data.removeprefix(UTF8_MARK).splitlines()
    else:
        steps = (len(data) * i // _LINES_LOOKED_AT for i in range(1, _LINES_LOOKED_AT))
        starts = {0} | {data.find(b"\n", step) + 1 for step in steps}
        lines = (_line(data, start) for start in sorted(starts))
    return [stripped for line in lines if (stripped := line.strip(b" \t\r\n,")) not in b"[]"]


def _line(data: bytes, start: int) -> bytes:
    """The line that starts there; of a long one both ends."""
    end = data.find(b"\n", start)
    end = len(data) if end < 0 else end
    if end - start <= _LONG_LINE:
        return data[start:end]
    return data[start : start + _LONG_LINE] + data[end - _LONG_LINE : end]


def _record_lines(lines: Sequence[bytes]) -> Kind | None:
    """Of lines that are JSON objects but for a few, the first and the last perhaps cut."""
    parsed = [_parsed(line) for line in lines]
    records = [value for value in parsed if isinstance(value, dict)]
    if len(lines) < 2 or not records:
        return None
    begins_within = parsed[0] is None and lines[0] != b"null"
    fits = len(records) + (lines[0] == b"null") + (begins_within and lines[0].endswith(b"}"))
    fits += parsed[-1] is None and lines[-1].startswith(b'{"')
    if fits < _MOST_OF * len(lines):
        return None
    kind = _of_records(next(filter(None, records), {}), "JSON lines", ".")
    return kind._replace(remedy=_BEGINS_WITHIN + kind.remedy) if begins_within else kind


def _parsed(line: bytes) -> Any:
    """The JSON value of a line, {} for a long one with the ends of an object, else None."""
    if len(line) > _LONG_LINE:
        return {} if line.startswith(b'{"') and line.endswith(b"}") else None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _pieces_of_pretty(text: str) -> Kind | None:
    """Of objects that are spread over lines, the first and the last perhaps cut."""
    first, *lines = text.split("\n")[:-1] or [""]
    if not (_OF_PRETTY.fullmatch(first) or re.search(r'(["\]}],?|\d,)$', first)):
        return None
    if len(lines) < 3 or not all(map(_OF_PRETTY.fullmatch, lines)):
        return None
    if not re.search(r"\}\s*,?\s*\{", text):
        return None  # one object, as programs have them too
    kind = _of_records({}, "JSON objects, one after the other", ".")
    return kind._replace(remedy=_BEGINS_WITHIN + kind.remedy)


# -------------------------------------------------------------------------------------- tables


def _table(text: str) -> Kind | None:
    """Of rows of cells below a header."""
    for delimiter, name in ((",", "CSV"), ("\t", "TSV"), (";", "CSV")):
        rows = list(islice(_rows(text, delimiter), _ROWS_LOOKED_AT))
        if _is_table(rows, delimiter):
            known = [cell for cell in rows[0] if _KNOWN_COLUMN.fullmatch(cell) and cell != "id"]
            column = _text_of(known or list(filter(None, rows[0])))
            options = "" if delimiter == "," else f', delimiter="{delimiter}"'.replace("\t", "\\t")
            return Kind(
                f"a table ({name})",
                "write its text column into a file, for example with `python3 -c 'import csv, sys; "
                f'[print(row["{column}"]) for row in csv.DictReader(sys.stdin{options})]\'`',
            )
    return None


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    try:
        yield from filter(None, csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:  # a cell larger than any: what came before it decides
        return


def _is_table(rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Whether cells are as a program writes them: names above, as many below, quotes or numbers."""
    header, body = (rows[0], rows[1:]) if len(rows) > 2 else ((), ())
    named = header[1:] if header and not header[0] else header  # pandas leaves its index unnamed
    if not named or len(set(named)) < len(named) or not all(map(_COLUMN.fullmatch, named)):
        return False
    even = [row for row in body if len(row) == len(header)]
    if len(even) < 0.95 * len(body):
        return False
    is_quoted = any(delimiter in cell or "\n" in cell for row in even for cell in row)
    is_known = any(map(_KNOWN_COLUMN.fullmatch, named))
    if len(header) == 1:
        return is_quoted and is_known
    return (
        is_quoted
        or is_known
        or any(all(map(_NUMBER.fullmatch, cells)) for cells in zip(*even, strict=True))
    )
