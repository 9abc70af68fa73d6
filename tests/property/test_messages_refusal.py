"""Whatever arrives is either the one spelling of a message, or refused with a typed error."""

import random
from functools import cache
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.terms import history, kinds, signatures
from contracts.terms.encoding import MAX_MESSAGE_BYTES
from contracts.terms.errors import Malformed, Refused, TooLarge, UnknownVersion
from contracts.terms.history import encode_kept
from tests.support.altering import altered, leaves
from tests.support.history import JobMaker

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=5),
    st.binary(max_size=33),
    st.floats(allow_nan=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@cache
def items() -> tuple[bytes, ...]:
    """Every kind of item of a history, encoded."""
    maker = JobMaker()
    maker.seal_step()
    maker.seal_step(last=True)
    return tuple(encode_kept(item) for item in maker.items)


@cache
def encoded_messages() -> tuple[bytes, ...]:
    maker = JobMaker()
    maker.seal_step()
    return tuple(item.message.encoded() for item in maker.items if hasattr(item, "message"))


def test_decode_message__anything__is_one_spelling_or_a_typed_refusal() -> None:
    """Decoding answers with a message of exactly these bytes, or refuses."""

    @given(data=st.binary(max_size=80) | values.map(lambda value: msgpack.packb(value)))
    def garbage(data: bytes) -> None:
        _accept_or_refuse(data)

    @given(
        original=st.sampled_from(encoded_messages()),
        seed=st.integers(0, 2**32),
        how=st.sampled_from(("leaf", "drop", "add", "order", "long", "cut", "tail")),
    )
    def damaged(original: bytes, seed: int, how: str) -> None:
        _accept_or_refuse(_damaged(original, how, random.Random(seed)))

    garbage()
    damaged()


def _accept_or_refuse(data: bytes) -> None:
    try:
        message = kinds.decode_message(data)
    except Refused as refusal:
        assert isinstance(refusal, Malformed | TooLarge | UnknownVersion)
        return
    assert message.encoded() == data


def _damaged(original: bytes, how: str, chance: random.Random) -> bytes:
    value: dict[str, Any] = msgpack.unpackb(original)
    names = list(value)
    match how:
        case "leaf":
            paths = [path for path, leaf in leaves(value) if leaf is not None]
            return bytes(msgpack.packb(altered(value, chance.choice(paths), chance)))
        case "drop":
            del value[chance.choice(names)]
        case "add":
            value["more"] = 1
        case "order":
            chance.shuffle(names)
            value = {name: value[name] for name in names}
        case "long":  # a number in more bytes than it needs
            return original.replace(b"\x01", b"\xcc\x01", 1)
        case "cut":
            return original[: chance.randrange(len(original))]
        case "tail":
            return original + b"\xc0"
    return bytes(msgpack.packb(value))


@given(
    original=st.sampled_from(range(70)),
    seed=st.integers(0, 2**32),
    how=st.sampled_from(("leaf", "drop", "add", "order", "long", "cut", "tail")),
)
def test_decode_kept__damaged_item__is_one_spelling_or_a_typed_refusal(
    original: int, seed: int, how: str
) -> None:
    data = _damaged(items()[original % len(items())], how, random.Random(seed))

    try:
        item = history.decode_kept(data)
    except Refused as refusal:
        assert isinstance(refusal, Malformed | TooLarge | UnknownVersion)
        return
    assert encode_kept(item) == data


@pytest.mark.parametrize(
    "decode", [kinds.decode_message, signatures.decode_signed, history.decode_kept]
)
def test_decode__over_the_bound__is_too_large(decode: Any) -> None:
    with pytest.raises(TooLarge):
        decode(b"\xc0" * (MAX_MESSAGE_BYTES + 1))
