"""A coin as bytes, and what a member makes of one that a seal says."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.coins import COIN_BYTES, Coin, check_coin, decode_coin
from contracts.terms.errors import InvalidSeal, Malformed, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StepNumber
from contracts.terms.messages import StepCoin

SEAL = Digest(b"s" * 32)
COIN = Coin(StepNumber(7), Digest(b"r" * 32), 2**40, Digest(b"c" * 32), SEAL)
UNSEEN = replace(COIN, batch=ZERO_DIGEST, seal=None)


def said(coin: Coin) -> StepCoin:
    """What the next seal says of it."""
    return StepCoin(
        job=JobId(bytes(32)), step=StepNumber(8), of=coin.step,
        batch=coin.batch, block=coin.block, coin=coin.value,
    )  # fmt: skip


@pytest.mark.parametrize("coin", [COIN, UNSEEN])
def test_coin__encoded_and_said__is_the_coin_that_we_read_ourselves(coin: Coin) -> None:
    assert decode_coin(coin.encoded()) == coin
    assert len(coin.encoded()) == COIN_BYTES
    check_coin(said(coin), coin, SEAL)


def test_check_coin__not_read_yet__waits() -> None:
    with pytest.raises(Unavailable):
        check_coin(said(COIN), None, SEAL)


@pytest.mark.parametrize("changed", [{"batch": SEAL}, {"block": 3}, {"value": SEAL}])
def test_check_coin__another_coin__is_an_invalid_seal(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSeal, match="another coin"):
        check_coin(said(COIN), replace(COIN, **changed), SEAL)


@pytest.mark.parametrize("anchored", [Digest(b"x" * 32), ZERO_DIGEST])
def test_check_coin__anchored_with_what_nobody_signed__is_an_invalid_seal(anchored: Digest) -> None:
    with pytest.raises(InvalidSeal, match="another seal of step 7"):
        check_coin(said(COIN), decode_coin(replace(COIN, seal=anchored).encoded()), SEAL)


@pytest.mark.parametrize("data", [b"", COIN.encoded()[:-1], COIN.encoded() + b"\0"])
def test_decode_coin__another_length__is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_coin(data)
