"""From text to tokens: what the poster does once with a `tokenizers` file, before he shards.

Invariant: equal text, file and library give equal tokens; nobody else tokenizes, so peers do not
need the library, and a difference between its versions changes a manifest, never a running job.
Tokens are little-endian, 2 bytes each where every id of the file fits, else 4. No special token is
added. The text is cut at line ends into pieces of `PIECE_BYTES` or more, so that memory is bounded.
"""

import json
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.terms.errors import Malformed, Refused, TooLarge
from training.content import need_target, why_no_json
from training.data.manifest import TOKEN_BYTES, TokenKind

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENIZER_BYTES = 64 * 2**20
PIECE_BYTES = 2**16
PIECES_AT_A_TIME = 64
_ARRAY_CODES: dict[TokenKind, str] = {
    "bytes": "B",
    "uint16": "H",
    "uint32": "I",
    "marked32": "I",
}


@dataclass(frozen=True)
class TokenFile:
    """A tokenizer: its file, byte for byte, and how many ids it can give."""

    data: bytes
    vocab_size: int

    @property
    def kind(self) -> TokenKind:
        """How wide its tokens are."""
        return "uint16" if self.vocab_size <= 2**16 else "uint32"

    def parsed(self) -> "Tokenizer":
        """The library's tokenizer; raises Refused: it is not installed."""
        return _parsed(self.data)

    def encode(self, text: bytes) -> bytes:
        """The tokens of UTF-8 text, without special tokens.

        Raises:
            Refused: it is not UTF-8, or the library is not installed.
        """
        tokenizer = self.parsed()
        tokens = array(_ARRAY_CODES[self.kind])
        pieces = list(_pieces(_decoded(text)))
        for start in range(0, len(pieces), PIECES_AT_A_TIME):
            batch = pieces[start : start + PIECES_AT_A_TIME]
            for encoded in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                tokens.extend(encoded.ids)
        return little_endian(tokens)


def read_token_file(path: Path) -> TokenFile:
    """The tokenizer in a file.

    Raises:
        Refused: it cannot be read, or the library is not installed. TooLarge: over 64 MiB.
        Malformed: it is no file of the `tokenizers` library. NotFound: a link to nothing.
    """
    need_target(path, "tokenizer")
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise Refused(f"tokenizer: {path} is a folder; write {path / 'tokenizer.json'}") from error
    except OSError as error:
        raise Refused(f"tokenizer: cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_TOKENIZER_BYTES:
        raise TooLarge(
            f"tokenizer: {path} has more than {MAX_TOKENIZER_BYTES} bytes",
            size=len(data),
            limit=MAX_TOKENIZER_BYTES,
        )
    try:
        ids = _parsed(data).get_vocab(with_added_tokens=True).values()
    except Malformed as error:
        raise Malformed(f"tokenizer: {path}: {error.message}") from error
    if not ids:
        raise Malformed(f"tokenizer: {path} has no vocabulary")
    return TokenFile(data, max(ids) + 1)


def token_values(data: bytes, kind: TokenKind) -> "array[int]":
    """The ids of little-endian tokens."""
    values = array(_ARRAY_CODES[kind])
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def little_endian(tokens: "array[int]") -> bytes:
    """Tokens as they stand in a shard; on a big-endian machine they are turned in place."""
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            f"data: byte {error.start} of the corpus is not UTF-8, which a tokenizer needs: "
            "convert the text, or leave `tokenizer` out to train on bytes"
        ) from error


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_BYTES) + 1 or len(text)
        yield text[start:end]
        start = end


def _parsed(data: bytes) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refused(
            "a tokenizer needs the `tokenizers` library: pip install 'tallystick[models]'"
        ) from error
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library has no class of its own for a file that is none
        raise Malformed(f"no file of the `tokenizers` library: {_why(data, error)}") from error


def _why(data: bytes, error: Exception) -> str:
    try:
        json.loads(data)
    except (ValueError, RecursionError) as no_json:
        return f"it {why_no_json(data, no_json)}"
    return str(error)


assert {kind: array(code).itemsize for kind, code in _ARRAY_CODES.items()} == TOKEN_BYTES
