"""Hashes keep things of different kinds apart."""

from blake3 import blake3

from contracts.terms.digest import BlobHasher, blob_digest, digest, keccak, peer_id, tensor_digest
from contracts.terms.errors import TallystickError, error_class
from contracts.terms.ids import SessionKey


def test_digest__same_bytes_of_two_kinds__differ() -> None:
    assert digest("a", b"x") != digest("b", b"x")


def test_blob_digest__bytes__is_plain_blake3() -> None:
    assert blob_digest(b"x") == blake3(b"x").digest()


def test_blob_hasher__bytes_in_pieces__is_the_blob_digest() -> None:
    hasher = BlobHasher()
    for piece in (b"ab", b"", b"c"):
        hasher.update(piece)

    assert hasher.digest() == blob_digest(b"abc")


def test_tensor_digest__dtype_and_shape__are_part_of_it() -> None:
    assert tensor_digest("float32", (2, 3), b"x") != tensor_digest("float32", (3, 2), b"x")
    assert tensor_digest("float32", (2,), b"x") != tensor_digest("int64", (2,), b"x")


def test_keccak__empty__is_the_known_value() -> None:
    assert keccak(b"").hex().startswith("c5d2460186f7233c927e7db2dcc703c0")


def test_peer_id__session_key__is_its_digest_as_a_peer() -> None:
    assert bytes(peer_id(SessionKey(b"k" * 32))) == digest("peer", b"k" * 32)


def test_error_class__code__is_its_class_and_unknown_ones_the_root() -> None:
    assert error_class("invalid_seal").code == "invalid_seal"
    assert error_class("?") is TallystickError
