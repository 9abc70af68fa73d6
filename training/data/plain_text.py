"""What does a file hold: documents as JSON lines, text, or what would be misread as text? Pure.

A file is judged by its first `LOOKED_AT` bytes, never by its name. Text is trained as it is, so
markup, compression and containers would be learned with it or instead of it: they are refused.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from contracts.terms.errors import Refused
from training.content import LOOKED_AT, UTF8_MARK, Kind, what_is

_STRING = r'"(?:[^"\\]|\\.)*"'
_DOCUMENT = re.compile(rf'\s*(\[\s*(\{{\s*["}}]|{_STRING}\s*[,\]])|\{{\s*\n\s*{_STRING}\s*:)')
_RECORD = re.compile(rf"\{{\s*({_STRING}\s*:|\}})")
_LINES_LOOKED_AT = 9
_AS_LINES = Kind(
    "a JSON document", "write a record in each line, for example with `jq -c '.[]'`, or `jq -c .`"
)
_KNOWN_COLUMN = re.compile(
    "text|content|body|story|completion|id|title|name|label|date|author|url|category|summary|"
    "prompt|response|question|answer|input|output|instruction|context|source|target|sentence|"
    "comment|review|rating|score|message|class",
    re.IGNORECASE,
)
_COLUMN = re.compile(r"(?! )[^\W\d][\w .()/%#-]{0,39}(?<! )")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?")
_ROWS_LOOKED_AT = 200


def is_json_lines(start: bytes) -> bool:
    """Whether a file with this start holds JSON objects, one in each line, the first may be cut."""
    lines = start[:LOOKED_AT].removeprefix(UTF8_MARK).lstrip().split(b"\n")
    if _begins_record(lines[0].strip()):
        return True
    whole = lines[1 : _LINES_LOOKED_AT + 1] if len(start) < LOOKED_AT else lines[1:-1]
    shown = [line for line in whole[:_LINES_LOOKED_AT] if line.strip()]
    return len(shown) > 1 and all(_begins_record(line.strip()) for line in shown)


def _begins_record(line: bytes) -> bool:
    """Whether it is a JSON object, or the start of one; prose may begin with one and go on."""
    text = line.decode(errors="replace")
    if not _RECORD.match(text):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return not error.msg.startswith("Extra data")
    except (ValueError, RecursionError):
        pass
    return True


def need_plain_start(name: str, start: bytes) -> None:
    """Refuse a file that is no plain text, by its first `LOOKED_AT` bytes.

    Raises:
        Refused: with what it is, and what to do.
    """
    text = start.removeprefix(UTF8_MARK).decode(errors="ignore").strip()
    is_document = _DOCUMENT.match(text) is not None
    kind = what_is(start) or (_AS_LINES if is_document else None) or _table(text)
    if kind is not None:
        raise refusal(name, kind)


def refusal(name: str, kind: Kind) -> Refused:
    """What is said of a file that is no text."""
    return Refused(f"data: {name} is {kind.name}: {kind.remedy}")


# -------------------------------------------------------------------------------------- tables


def _table(text: str) -> Kind | None:
    """Of rows of cells below a header."""
    for delimiter, name in ((",", "CSV"), ("\t", "TSV"), (";", "CSV")):
        rows = list(islice(_rows(text, delimiter), _ROWS_LOOKED_AT))
        if _is_table(rows, delimiter):
            options = "" if delimiter == "," else f', delimiter="{delimiter}"'.replace("\t", "\\t")
            return Kind(
                f"a table ({name})",
                "write its rows as JSON lines, for example with `python3 -c 'import csv, json, "
                f"sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin{options})]'`",
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
