"""What a job is trained and judged on: a list of content-hashed shards, named by its own digest.

A shard is a run of tokens, little-endian, all equally wide; where a byte is a token the job names
no tokenizer. Of chats (`marked32`) it is whole rows, and the highest bit of a token marks it as a
target of the loss. Its bytes are one blob of up to 64 MiB. A second blob, its index, lists the
digests of the shard's pieces of 16 KiB, and the manifest lists the digests of indexes: so a peer
that wants a row fetches the manifest (of 20 GB: 20 KB), one index (131 KB at most) and a piece or
two, and checks each of them before it is used.

Invariants: a manifest or index that was read is canonical and bounded. Equal shards have equal
indexes and no index stands in a manifest twice, so no shard is in train and in validation.
"""

from array import array
from typing import Annotated, BinaryIO, Literal, Self

from annotated_types import Ge, Le, Len
from pydantic import model_validator

from contracts.terms.digest import BlobHasher, blob_digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, DigestField
from contracts.terms.messages import BlobRecord, Record

MAX_SHARDS = 32_768
MAX_SHARD_BYTES = 64 * 2**20
PIECE_BYTES = 2**14
_DIGEST_BYTES = 32

TokenKind = Literal["bytes", "uint16", "uint32", "marked32"]
TOKEN_BYTES: dict[TokenKind, int] = {"bytes": 1, "uint16": 2, "uint32": 4, "marked32": 4}
TARGET_MARK = 2**31
"""Added to a token of `marked32` that the loss counts."""

NumBytes = Annotated[int, Ge(1), Le(MAX_SHARD_BYTES)]
_UNMARKED = bytes(range(128))


class Shard(Record):
    """A shard as the manifest names it."""

    digest: DigestField  # of its index
    num_bytes: NumBytes


class ShardIndex(BlobRecord):
    """Where the bytes of a shard are, and what they have to be."""

    max_bytes = 2**18

    kind: Literal["shard.v1"] = "shard.v1"
    blob: DigestField  # of all of its bytes
    num_bytes: NumBytes
    pieces: Annotated[bytes, Len(_DIGEST_BYTES, MAX_SHARD_BYTES // PIECE_BYTES * _DIGEST_BYTES)]

    @model_validator(mode="after")
    def _as_many_as_it_takes(self) -> Self:
        if len(self.pieces) != -(-self.num_bytes // PIECE_BYTES) * _DIGEST_BYTES:
            raise ValueError(f"{len(self.pieces)} bytes of digests for {self.num_bytes} bytes")
        return self

    def piece(self, number: int) -> Digest:
        """What the bytes from `number` times `PIECE_BYTES` on have to be; the last are fewer."""
        return Digest(self.pieces[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES])

    def shard(self) -> Shard:
        """The shard as a manifest names it."""
        return Shard(digest=self.digest(), num_bytes=self.num_bytes)


class Manifest(BlobRecord):
    """The corpus: shards to train on and shards to validate on, each in a fixed order."""

    max_bytes = 4 * 2**20

    kind: Literal["manifest.v3"] = "manifest.v3"
    tokens: TokenKind = "bytes"
    train: Annotated[tuple[Shard, ...], Len(1, MAX_SHARDS)]
    validation: Annotated[tuple[Shard, ...], Len(1, MAX_SHARDS)]

    @model_validator(mode="after")
    def _whole_tokens(self) -> Self:
        if any(shard.num_bytes % self.token_bytes for shard in self.shards()):
            raise ValueError("a shard ends within a token")
        return self

    @model_validator(mode="after")
    def _no_shard_twice(self) -> Self:
        digests = [shard.digest for shard in self.shards()]
        if len(set(digests)) != len(digests):
            raise ValueError("a shard stands in the manifest twice")
        return self

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return TOKEN_BYTES[self.tokens]

    @property
    def is_marked(self) -> bool:
        """Whether its tokens say which of them the loss counts, and rows do not overlap."""
        return self.tokens == "marked32"

    def shards(self) -> tuple[Shard, ...]:
        """All shards, train first."""
        return (*self.train, *self.validation)


def num_targets(row: bytes) -> int:
    """Targets of a row of marked tokens, or of a chat: its first is predicted from nothing."""
    return len(row[7::4].translate(None, _UNMARKED))  # the highest byte of each token behind it


def count_targets(file: BinaryIO, row_bytes: int) -> "array[int]":
    """The targets of each whole row in a shard of marked tokens.

    Raises:
        Malformed: a row has more than 2 bytes count.
    """
    counts = array("H")
    try:
        while len(row := file.read(row_bytes)) == row_bytes:
            counts.append(num_targets(row))
    except OverflowError as error:
        raise Malformed("a row has more targets than 2 bytes count") from error
    return counts


def index_of(file: BinaryIO) -> ShardIndex:
    """The index of a shard; reads it a piece at a time.

    Raises:
        Malformed: it is empty, or too long.
    """
    hasher, pieces, num_bytes = BlobHasher(), bytearray(), 0
    while piece := file.read(PIECE_BYTES):
        hasher.update(piece)
        pieces += blob_digest(piece)
        num_bytes += len(piece)
    value = {"blob": hasher.digest(), "num_bytes": num_bytes, "pieces": bytes(pieces)}
    return ShardIndex.from_value(value)
