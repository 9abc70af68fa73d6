"""What a job is trained and judged on: a list of content-hashed shards, named by its own digest.

Invariant: a manifest that was read is canonical and bounded, and no shard stands in it twice, so
train and validation are disjoint by hash. In version 1 a shard is a blob of bytes, and a byte is a
token; in version 2 it is a run of tokens that the poster made once, little-endian, all equally
wide, and the job's `data.tokenizer` names the file that made them. In version 3 it is whole rows of
chats, and the highest bit of a token of 4 bytes marks it as a target of the loss.
"""

from typing import Annotated, Literal, Self, get_args

from annotated_types import Ge, Le, Len
from pydantic import model_validator

from contracts.terms.digest import blob_digest
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.ids import Digest, DigestField
from contracts.terms.messages import Record

MAX_SHARDS = 32_768
MAX_SHARD_BYTES = 64 * 2**20
MAX_MANIFEST_BYTES = 4 * 2**20

TokenKind = Literal["bytes", "uint16", "uint32", "marked32"]
TOKEN_BYTES: dict[TokenKind, int] = {"bytes": 1, "uint16": 2, "uint32": 4, "marked32": 4}
TARGET_MARK = 2**31
"""Added to a token of `marked32` that the loss counts."""
Version = Literal["manifest.v1", "manifest.v2", "manifest.v3"]
_VERSIONS: dict[TokenKind, Version] = {"bytes": "manifest.v1", "marked32": "manifest.v3"}


def version_of(tokens: TokenKind) -> Version:
    """The kind of a manifest whose shards hold such tokens."""
    return _VERSIONS.get(tokens, "manifest.v2")


class Shard(Record):
    """One blob of the corpus."""

    digest: DigestField
    num_bytes: Annotated[int, Ge(1), Le(MAX_SHARD_BYTES)]


class Manifest(Record):
    """The corpus: shards to train on and shards to validate on, each in a fixed order."""

    kind: Version = "manifest.v1"
    tokens: TokenKind = "bytes"
    train: Annotated[tuple[Shard, ...], Len(1, MAX_SHARDS)]
    validation: Annotated[tuple[Shard, ...], Len(1, MAX_SHARDS)]

    @model_validator(mode="after")
    def _whole_tokens(self) -> Self:
        if self.kind != version_of(self.tokens):
            raise ValueError(f"its tokens are those of {version_of(self.tokens)}")
        if any(shard.num_bytes % self.token_bytes for shard in self.shards()):
            raise ValueError("a shard ends within a token")
        return self

    @model_validator(mode="after")
    def _no_shard_twice(self) -> Self:
        digests = [shard.digest for shard in (*self.train, *self.validation)]
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

    def encoded(self) -> bytes:
        """Canonical bytes: the blob that the job's `data.manifest` names."""
        return encode(self.value())

    def digest(self) -> Digest:
        """The manifest's name, the digest of its blob."""
        return blob_digest(self.encoded())

    def shards(self) -> tuple[Shard, ...]:
        """All shards, train first."""
        return (*self.train, *self.validation)


KINDS = get_args(Manifest.model_fields["kind"].annotation)


def decode_manifest(data: bytes) -> Manifest:
    """The manifest that a blob spells.

    Raises:
        TooLarge: more than `MAX_MANIFEST_BYTES`.
        UnknownVersion: another kind or version.
        Malformed: anything else that does not fit, another spelling of the same value included.
    """
    value = decode(data, max_bytes=MAX_MANIFEST_BYTES)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise Malformed("no manifest: its kind is missing")
    if value["kind"] not in KINDS:
        raise UnknownVersion(f"unknown kind {value['kind']!r:.80}", kind=value["kind"])
    manifest = Manifest.from_value(value)
    if manifest.encoded() != data:
        raise Malformed("manifest: not in canonical form")
    return manifest
