"""The only hashes: BLAKE3 for what people keep, keccak-256 for what a contract checks.

Every BLAKE3 digest is taken under a context (the kind of the thing), so that equal bytes of two
kinds never share a digest. Tensors are digested as wire bytes after the codec, with dtype name and
shape (docs/protocol.md 1).
"""

from collections.abc import Sequence

from blake3 import blake3
from Crypto.Hash import keccak as _keccak
from typing_extensions import Buffer

from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, PeerId, SessionKey

_PREFIX = "tallystick 1 "
_TENSOR, _END_OF_FORM = "tensor", b"|"


def digest(kind: str, data: Buffer) -> Digest:
    """BLAKE3 of `data` in the context of `kind`, 32 bytes."""
    return Digest(blake3(memoryview(data).cast("B"), derive_key_context=_PREFIX + kind).digest())


def blob_digest(data: Buffer) -> Digest:
    """Plain BLAKE3 of `data`: the name of a blob, repeatable with any `b3sum`."""
    return Digest(blake3(memoryview(data).cast("B")).digest())


class BlobHasher:
    """`blob_digest` of bytes that come in pieces."""

    def __init__(self) -> None:
        """Nothing was hashed yet."""
        self._hasher = blake3()

    def update(self, data: Buffer) -> None:
        """Append `data`."""
        self._hasher.update(memoryview(data).cast("B"))

    def digest(self) -> Digest:
        """Name of everything so far."""
        return Digest(self._hasher.digest())


def tensor_digest(dtype: str, shape: Sequence[int], data: Buffer) -> Digest:
    """Digest of a tensor's wire bytes with its dtype name and shape."""
    hasher = blake3(derive_key_context=_PREFIX + _TENSOR)
    hasher.update(_form(dtype, shape))
    hasher.update(memoryview(data).cast("B"))
    return Digest(hasher.digest())


def formed_tensor(dtype: str, shape: Sequence[int], data: Buffer) -> bytes:
    """What `tensor_digest` is taken of: of whatever form a tensor is, it shows what was bound."""
    return b"".join((_form(dtype, shape), memoryview(data).cast("B")))


def formed_digest(formed: Buffer) -> Digest:
    """`tensor_digest` of what `formed_tensor` made."""
    return digest(_TENSOR, formed)


def wire_bytes(formed: bytes) -> memoryview:
    """The wire bytes in what `formed_tensor` made.

    Raises:
        Malformed: it says no form.
    """
    end = formed.find(_END_OF_FORM)
    if end < 0:
        raise Malformed("bytes without the dtype and shape of a tensor")
    return memoryview(formed)[end + len(_END_OF_FORM) :]


def _form(dtype: str, shape: Sequence[int]) -> bytes:
    return f"{dtype}{list(shape)}".encode() + _END_OF_FORM


def peer_id(session_key: SessionKey) -> PeerId:
    """The name of the peer that holds `session_key` (docs/architecture.md 5)."""
    return PeerId(digest("peer", session_key))


def keccak(data: bytes) -> Digest:
    """keccak-256, as contracts compute it."""
    return Digest(_keccak.new(digest_bits=256, data=data).digest())
