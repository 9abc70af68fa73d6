"""One spelling of every value."""

import msgpack
import pytest

from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, TooLarge


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**63 - 1, "text", b"bytes", [1, [2]], {"a": 1, "b": {"c": []}}],
)
def test_encode__plain_value__comes_back(value: Value) -> None:
    assert decode(encode(value)) == value


def test_encode__large_integer__travels_as_sixteen_bytes() -> None:
    assert decode(encode(2**63)) == (2**63).to_bytes(16, "big")


def test_encode__keys_in_any_order__are_the_same_bytes() -> None:
    assert encode({"b": 1, "a": 2}) == encode({"a": 2, "b": 1})


@pytest.mark.parametrize("value", [1.5, 2**127, -(2**63), {1: 2}, {b"a": 1}, object()])
def test_encode__what_has_no_spelling__is_malformed(value: Value) -> None:
    with pytest.raises(Malformed):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xcc\x01",  # 1 in two bytes
        b"\xc0\xc0",  # trailing
        b"\xa1\xff",  # no text
        b"\xd4\x01\x00",  # extension type
        msgpack.packb(1.5),
        msgpack.packb({"b": 1, "a": 2}),
        msgpack.packb({1: 2}),
        b"\x82\xa1a\x01\xa1a\x01",  # a key twice
        b"\x91" * 2000,
    ],
)
def test_decode__other_bytes__are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


def test_decode__over_the_bound__is_too_large() -> None:
    with pytest.raises(TooLarge) as caught:
        decode(b"\xc0" * 5, max_bytes=4)

    assert caught.value.data == {"size": 5, "limit": 4}
