"""Is a file the text that a model should learn, or something that would be misread as text? Pure.

Bytes are trained as they are, so markup, compression and containers would be learned with the text
or instead of it. What a file is is seen by its content; its name says nothing.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Any

from contracts.terms.errors import Refused

_MAGIC = (
    (b"PAR1", "a Parquet file", "write its text column into a text file"),
    (b"ARROW1", "an Arrow file", "write its text column into a text file"),
    (b"\x1f\x8b", "compressed by gzip", "unpack it with `gunzip -k`"),
    (b"PK\x03\x04", "a zip archive", "unpack it with `unzip`, and name the text files in it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with `zstd -d`"),
    (b"BZh", "compressed by bzip2", "unpack it with `bunzip2 -k`"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unpack it with `unxz -k`"),
    (b"\xff\xfe", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"%PDF-", "a PDF document", "extract its text with `pdftotext`"),
)
_CHAT_FIELDS = ("messages", "conversations", "conversation")
_TEXT_FIELDS = ("text", "content", "body", "story", "completion")
_MOST_JSON_BYTES = 2**26  # a longer document is looked at line by line alone
_LINES_LOOKED_AT = 8
_PIECE = 2**20


def need_plain_text(name: str, data: bytes) -> None:
    """Refuse a file that is no plain UTF-8 text.

    Args:
        name: Of the file, for the refusal.
        data: All of it.

    Raises:
        Refused: with what it is, and what to do.
    """
    for start, kind, remedy in _MAGIC:
        if data.startswith(start):
            raise _refusal(name, kind, remedy)
    if (at := data.find(0)) >= 0:
        raise _refusal(name, f"binary (a zero byte at {at})", "give UTF-8 text files")
    if (wrong := _undecodable(data)) is not None:
        raise _refusal(
            name,
            f"no UTF-8 text (byte 0x{data[wrong]:02x} at {wrong})",
            "convert it, for example with `iconv -f LATIN1 -t UTF-8`",
        )
    if (found := _record(data)) is not None:
        raise _refusal(name, *found)


def _refusal(name: str, kind: str, remedy: str) -> Refused:
    return Refused(f"data: {name} is {kind}, which would be trained as it stands: {remedy}")


def _undecodable(data: bytes) -> int | None:
    """Where the first byte is that UTF-8 cannot have there."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, max(len(data), 1), _PIECE):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(data[at : at + _PIECE], final=at + _PIECE >= len(data))
        except UnicodeDecodeError as error:
            return at - pending + error.start
    return None


def _record(data: bytes) -> tuple[str, str] | None:
    """What it is and what to do, of JSON lines or one JSON document of records."""
    start = data.lstrip()[:1]
    if start not in (b"{", b"["):
        return None
    lines = [_parsed(line) for line in _first_lines(data)]
    if len(lines) > 1 and all(isinstance(line, dict) for line in lines):
        return _named("JSON lines", lines[0], ".")
    document = _parsed(data) if len(data) <= _MOST_JSON_BYTES else None
    if isinstance(document, dict):
        return _named("a JSON document", document, ".")
    if isinstance(document, list) and document and isinstance(document[0], dict):
        return _named("a JSON document", document[0], ".[]|.")
    return None


def _first_lines(data: bytes) -> Iterator[bytes]:
    """The first lines that are not empty, of those that a piece holds whole."""
    at, found = 0, 0
    while found < _LINES_LOOKED_AT and at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if line := data[at:end].strip():
            found += 1
            yield line
        at = end + 1


def _parsed(text: bytes) -> Any:
    """The JSON value; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(kind: str, record: dict[str, Any], path: str) -> tuple[str, str]:
    for field in _CHAT_FIELDS:
        if isinstance(record.get(field), list):
            return (
                f"{kind} of chats",
                "write the turns as the text that the model should learn, for example with "
                f"`jq -r '{path}{field}[]|.role+\": \"+.content'`",
            )
    texts = [name for name, value in record.items() if isinstance(value, str)]
    field = next((name for name in _TEXT_FIELDS if name in texts), texts[0] if texts else "text")
    return kind, f"write its text alone into a file, for example with `jq -r '{path}{field:.40}'`"
