"""Kept items."""

from functools import cache

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed
from contracts.terms.history import (
    Kept,
    Leaves,
    claim_leaves_root,
    decode_kept,
    encode_kept,
    kept_digest,
    messages_root,
)
from contracts.terms.merkle import plain_root
from contracts.terms.signatures import Signed
from tests.support.history import JobMaker


@cache
def items() -> tuple[Kept, ...]:
    maker = JobMaker()
    maker.seal_step()
    return tuple(maker.items)


def one_leaves() -> Leaves:
    return next(item for item in items() if isinstance(item, Leaves))


def test_decode_kept__every_item__comes_back_under_its_own_digest() -> None:
    for item in items():
        assert decode_kept(encode_kept(item)) == item
    assert len({kept_digest(item) for item in items()}) == len(items())


@pytest.mark.parametrize(
    "change",
    [{"type": "other"}, {"more": 1}, {"claim": b"short"}, {"leaves": [{"item": 0}]}],
)
def test_decode_kept__other_form__is_malformed(change: dict[str, object]) -> None:
    value = decode(encode_kept(one_leaves()))
    assert isinstance(value, dict)

    with pytest.raises(Malformed):
        decode_kept(encode(value | change))  # type: ignore[arg-type]  # any values will do


def test_messages_root__any_order__is_the_same_and_binds_all() -> None:
    messages = [item.message for item in items()[5:9] if isinstance(item, Signed)]

    assert messages_root(messages) == messages_root(messages[::-1])
    assert messages_root(messages) != messages_root(messages[1:])


def test_claim_leaves_root__order__matters() -> None:
    leaves = one_leaves().leaves

    assert claim_leaves_root(leaves) == plain_root([encode(leaf.value()) for leaf in leaves])
    assert claim_leaves_root(leaves) != claim_leaves_root(leaves[::-1])
