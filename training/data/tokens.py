"""From text to tokens: what the poster does once, with a `tokenizers` file or without one.

Invariant: equal text, file and library give equal tokens; nobody else tokenizes, so peers do not
need the library, and a difference between its versions changes a manifest, never a running job.
Tokens are little-endian: bytes of UTF-8 without a file; with one 2 bytes each where every id fits,
else 4. A text is cut at line ends into pieces of `PIECE_CHARACTERS` or more, so that memory is
bounded. No special token is added to a text; what stands between documents is `separator`: the
first of `ENDS_OF_TEXT` that the file has as a special token, else what a newline is.
"""

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from contracts.terms.errors import Malformed, Refused, TooLarge
from training.content import need_target, why_no_json
from training.data.documents import Document
from training.data.manifest import TOKEN_BYTES, TokenKind

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENIZER_BYTES = 64 * 2**20
PIECE_CHARACTERS = 2**16
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[EOS]", "[SEP]")
_ARRAY_CODES: dict[TokenKind, str] = {
    "bytes": "B",
    "uint16": "H",
    "uint32": "I",
    "marked32": "I",
}


class Encoder(Protocol):
    """Makes tokens of texts."""

    kind: TokenKind
    separator: bytes
    """The tokens between two documents."""

    def encode(self, documents: Sequence[Document]) -> list[bytes]:
        """The tokens of each text."""


class ByteEncoder:
    """A byte of UTF-8 is a token, and a newline stands between documents."""

    kind: TokenKind = "bytes"
    separator = b"\n"

    def encode(self, documents: Sequence[Document]) -> list[bytes]:
        """See `Encoder.encode`."""
        return [document.text.encode() for document in documents]


class TokenEncoder:
    """Tokens of a `tokenizers` file."""

    def __init__(self, tokenizer: "Tokenizer", kind: TokenKind) -> None:
        self.kind, self._tokenizer = kind, tokenizer
        special = {
            token.content: number
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        end = next((special[name] for name in ENDS_OF_TEXT if name in special), None)
        self.separator = self._encode(["\n"])[0] if end is None else self._packed([[end]])

    def encode(self, documents: Sequence[Document]) -> list[bytes]:
        """See `Encoder.encode`."""
        return self._encode([document.text for document in documents])

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        pieces = [list(_pieces(text)) for text in texts]
        flat = [piece for each in pieces for piece in each]
        encoded = iter(self._tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        return [self._packed([next(encoded).ids for _ in each]) for each in pieces]

    def _packed(self, ids: Sequence[list[int]]) -> bytes:
        tokens = array(_ARRAY_CODES[self.kind])
        for each in ids:
            tokens.extend(each)
        return little_endian(tokens)


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

    def encoder(self) -> TokenEncoder:
        """What makes its tokens; raises Refused if the library is not installed."""
        return TokenEncoder(self.parsed(), self.kind)


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


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE_CHARACTERS) + 1 or len(text)
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
