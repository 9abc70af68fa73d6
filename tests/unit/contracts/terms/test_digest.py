"""Hashes keep things of different kinds apart."""

import pytest
from blake3 import blake3

from contracts.terms.digest import (
    BlobHasher,
    blob_digest,
    digest,
    formed_digest,
    formed_tensor,
    tensor_digest,
    wire_bytes,
)
from contracts.terms.errors import Malformed, TallystickError, error_class


def test_digest__same_bytes_of_two_kinds__differ() -> None:
    assert digest("a", b"x") != digest("b", b"x")


def test_blob_digest__whole_or_in_pieces__is_plain_blake3() -> None:
    hasher = BlobHasher()
    for piece in (b"ab", b"", b"c"):
        hasher.update(piece)

    assert hasher.digest() == blob_digest(b"abc") == blake3(b"abc").digest()


def test_tensor_digest__dtype_and_shape__are_part_of_it() -> None:
    assert tensor_digest("float32", (2, 3), b"x") != tensor_digest("float32", (3, 2), b"x")
    assert tensor_digest("float32", (2,), b"x") != tensor_digest("int64", (2,), b"x")


def test_formed_tensor__of_any_form__has_the_tensors_digest_and_its_bytes() -> None:
    for shape in ((), (2, 3)):
        formed = formed_tensor("float32", shape, b"x|y")
        assert formed_digest(formed) == tensor_digest("float32", shape, b"x|y")
        assert bytes(wire_bytes(formed)) == b"x|y"
    with pytest.raises(Malformed):
        wire_bytes(b"float32[2]")


def test_error_class__code__is_its_class_and_unknown_ones_the_root() -> None:
    assert error_class("invalid_seal").code == "invalid_seal"
    assert error_class("?") is TallystickError
