"""A coin as bytes."""

import pytest

from contracts.terms.coins import COIN_BYTES, Coin, decode_coin
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, StepNumber

COIN = Coin(StepNumber(7), Digest(b"r" * 32), 2**40, Digest(b"c" * 32))


def test_decode_coin__encoded__is_the_coin() -> None:
    assert decode_coin(COIN.encoded()) == COIN
    assert len(COIN.encoded()) == COIN_BYTES


@pytest.mark.parametrize("data", [b"", COIN.encoded()[:-1], COIN.encoded() + b"\0"])
def test_decode_coin__another_length__is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_coin(data)
