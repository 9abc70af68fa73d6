"""The documents of a file, one after another, from any place on: text, JSON lines, Parquet, Arrow.

A text file is one document. A long one comes in pieces of whole lines (a line of more than
`LONGEST_LINE` is cut), so that a part of it can be set aside. A record is one document: its field.
What a file is, its first bytes say. A few blocks of a file are in memory, of Arrow and Parquet a
batch of records.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from contracts.terms.errors import Refused
from training.content import LOOKED_AT, UTF8_MARK, Kind
from training.data.plain_text import is_json_lines, need_plain_start, refusal
from training.data.sources import BLOCK, SourceFile

if TYPE_CHECKING:
    import pyarrow

SHORTEST_PIECE, LONGEST_PIECE = 2**9, 2**16  # of a text, at its next line's end
PIECES = 64  # of a set of texts, at least
LONGEST_LINE = 2**20  # of a text
MAX_RECORD_BYTES = 64 * 2**20
_RECORDS_AT_A_TIME = 64
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file the next document begins."""

    at: int = 0  # bytes of a text or of JSON lines, records of Parquet and Arrow
    lines: int = 0  # of JSON lines before it


@dataclass(frozen=True, slots=True)
class Document:
    """A document, or a part of one."""

    text: str
    after: Place
    is_end: bool = True  # False: more of the same document follows, perhaps none but its end
    spans: tuple[tuple[int, int], ...] = ()  # characters of a chat that are the assistant's


def piece_bytes(files: Sequence[SourceFile]) -> int:
    """How long a piece of a text is: a 64th of the whole set, within bounds."""
    sizes = [file.num_bytes for file in files if file.num_bytes is not None]
    wanted = sum(sizes) // PIECES if len(sizes) == len(files) else LONGEST_PIECE
    return max(SHORTEST_PIECE, min(wanted, LONGEST_PIECE))


def documents(
    file: SourceFile, field: str, place: Place, *, piece: int = LONGEST_PIECE
) -> Iterator[Document]:
    """The documents of `file` from `place` on.

    Args:
        file: It has not changed since `place` was handed out.
        field: Of a record, the one with its text.
        place: Of a document; the first is at `Place()`.
        piece: Bytes of a piece of a text, at least.

    Raises:
        Refused: neither text nor records, or one of them is broken or has no such field.
        ServiceUnreachable, NotFound: it cannot be read.
    """
    with file.open(is_streamed=True) as opened:
        start = opened.read(LOOKED_AT)
    if file.is_text:
        return _text(file, place.at, piece)
    if start.startswith(_PARQUET):
        return _parquet(file, field, place.at)
    if start.startswith((_ARROW_FILE, _ARROW_STREAM)):
        return _arrow(file, field, place.at, is_stream=start.startswith(_ARROW_STREAM))
    if is_json_lines(start):
        return _json_lines(file, field, place)
    need_plain_start(file.name, start)
    return _text(file, place.at, piece)


# -------------------------------------------------------------------------------------------- text


def _text(file: SourceFile, at: int, piece: int) -> Iterator[Document]:
    with file.open(is_streamed=True) as opened:
        _skip(opened, at)
        rest, is_over = b"", False
        while not is_over:
            block = opened.read(BLOCK)
            rest, start, is_over = rest + block, 0, not block
            while end := _end_of_piece(rest, start, piece, is_over=is_over):
                text = _decoded(file.name, rest[start:end], at)
                at, start = at + end - start, end
                yield Document(text, Place(at), is_end=False)
            rest = rest[start:]
    yield Document("", Place(at))


def _end_of_piece(data: bytes, start: int, piece: int, *, is_over: bool) -> int:
    """Where the piece ends that begins at `start`; 0 if more has to be read first."""
    if end := data.find(b"\n", start + piece - 1, start + LONGEST_LINE) + 1:
        return end
    if len(data) - start <= LONGEST_LINE:
        return len(data) if is_over and start < len(data) else 0
    end = start + LONGEST_LINE
    begins = (n for n in range(4) if data[end - n] & 0xC0 != 0x80)  # of a character
    return end - next(begins, 0)


def _decoded(name: str, data: bytes, at: int) -> str:
    if (zero := data.find(0)) >= 0:
        kind = Kind(f"binary (a zero byte at {at + zero})", "give UTF-8 text files")
        raise refusal(name, kind)
    try:
        return (data.removeprefix(UTF8_MARK) if at == 0 else data).decode()
    except UnicodeDecodeError as error:
        wrong = at + error.start + (len(UTF8_MARK) if at == 0 and data[:3] == UTF8_MARK else 0)
        what = f"no UTF-8 text (byte 0x{error.object[error.start]:02x} at {wrong})"
        remedy = "convert it, for example with `iconv -f LATIN1 -t UTF-8`"
        raise refusal(name, Kind(what, remedy)) from error


def _skip(file: BinaryIO, num_bytes: int) -> None:
    """Read on to a place: what is streamed has no other way there."""
    while num_bytes and (block := file.read(min(num_bytes, BLOCK))):
        num_bytes -= len(block)


# ----------------------------------------------------------------------------------------- records


def _json_lines(file: SourceFile, field: str, place: Place) -> Iterator[Document]:
    for line, where, after in lines_of(file, place):
        if text := _text_of(line, field, where):
            yield Document(text, after)


def lines_of(file: SourceFile, place: Place) -> Iterator[tuple[bytes, str, Place]]:
    """Each line from `place` on, what to call it, and where the next begins.

    Raises:
        Refused: one has more than `MAX_RECORD_BYTES`.
        ServiceUnreachable, NotFound: the file cannot be read.
    """
    at, number = place.at, place.lines
    with file.open(is_streamed=True) as opened:
        _skip(opened, at)
        for line in _lines(opened):
            where = f"{file.name}, line {number + 1}"
            if len(line) > MAX_RECORD_BYTES:
                raise Refused(f"data: {where} has more than {MAX_RECORD_BYTES} bytes")
            text = line.removeprefix(UTF8_MARK if at == 0 else b"")
            at, number = at + len(line), number + 1
            yield text, where, Place(at, number)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends; of one that is too long no more than shows that it is."""
    rest = b""
    while block := file.read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > MAX_RECORD_BYTES:
            break
    if rest:
        yield rest


def _text_of(line: bytes, field: str, where: str) -> str | None:
    """The field of a line; None if it is empty, or the line is."""
    if not line.strip():
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise Refused(f"data: {where} is broken JSON ({why}): mend it, or leave it out") from error
    if not isinstance(record, dict):
        raise Refused(f"data: {where} is no JSON object: write one in each line")
    if field not in record:
        raise _no_field(where, field, list(record))
    text = record[field]
    if not isinstance(text, str | None):
        raise _no_text(where, field, type(text).__name__)
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise Refused(f"data: {where}: {field} has half a character (\\ud800 and the like)") from (
            error
        )
    return text


def _no_field(where: str, field: str, there: list[str]) -> Refused:
    return Refused(
        f"data: {where} has no field {field!r:.80}: name one as `field`, there are "
        f"{', '.join(there)!s:.300}"
    )


def _no_text(where: str, field: str, kind: str) -> Refused:
    return Refused(f"data: {where}: {field!r:.80} is no text but {kind:.80}: name another `field`")


# -------------------------------------------------------------------------------------------- Arrow


def _parquet(file: SourceFile, field: str, at: int) -> Iterator[Document]:
    arrow = _library(file.name)
    from pyarrow import parquet

    with file.open(is_streamed=False) as opened, _reading(arrow, file.name):
        # Unbuffered it would hold a column of a whole row group, which may be a gigabyte.
        found = parquet.ParquetFile(opened, buffer_size=BLOCK, pre_buffer=False)
        _need_text(arrow, found.schema_arrow, field, file.name)
        end = 0
        for group in range(found.metadata.num_row_groups):
            start, end = end, end + found.metadata.row_group(group).num_rows
            if end <= at:
                continue
            options = {"row_groups": [group], "columns": [field], "use_threads": False}
            for batch in found.iter_batches(_RECORDS_AT_A_TIME, **options):
                yield from _of_batch(batch, field, start, at)
                start += batch.num_rows


def _arrow(file: SourceFile, field: str, at: int, *, is_stream: bool) -> Iterator[Document]:
    arrow = _library(file.name)
    from pyarrow import ipc

    with file.open(is_streamed=is_stream) as opened, _reading(arrow, file.name):
        reader = ipc.open_stream(opened) if is_stream else ipc.open_file(opened)
        _need_text(arrow, reader.schema, field, file.name)
        numbers = None if is_stream else range(reader.num_record_batches)
        batches = reader if numbers is None else map(reader.get_batch, numbers)
        start = 0
        for batch in batches:
            yield from _of_batch(batch, field, start, at)
            start += batch.num_rows


def _of_batch(batch: "pyarrow.RecordBatch", field: str, start: int, at: int) -> Iterator[Document]:
    """Documents of a batch whose first record has number `start`, from record `at` on."""
    if start + batch.num_rows <= at:
        return
    first = max(0, at - start)
    texts = batch.column(field)[first:].to_pylist()
    for number, text in enumerate(texts, start + first + 1):
        if text:
            yield Document(text, Place(number))


def _library(name: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise Refused(
            f"data: reading {name} needs pyarrow: pip install 'tallystick[data]'"
        ) from error
    return pyarrow


@contextmanager
def _reading(arrow: Any, name: str) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise Refused(f"data: {name} is broken: {error!s:.300}") from error


def _need_text(arrow: Any, schema: "pyarrow.Schema", field: str, name: str) -> None:
    if field not in schema.names:
        raise _no_field(name, field, schema.names)
    found = schema.field(field).type
    values = found.value_type if arrow.types.is_dictionary(found) else found
    kinds = (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)
    if not any(is_kind(values) for is_kind in kinds):
        raise _no_text(name, field, str(found))
