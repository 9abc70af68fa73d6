"""Codes of differences: what is lost, by whose choice, and what nobody can have made."""

import pytest
import torch

from contracts.terms.errors import Malformed, NotFinite
from training.compression.differences import BLOCK, Bits, decode, encode, num_bytes
from training.philox import SEED_BYTES

SEED = bytes(range(SEED_BYTES))
BITS: list[Bits] = [4, 8]


def numbers(num: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, generator=generator) * 1e-3


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num", [1, 7, BLOCK, BLOCK + 1, 10_001])
def test_encode__any_length__within_one_level_of_each_element(bits: Bits, num: int) -> None:
    vector = numbers(num)

    data = encode(vector, bits, SEED)

    assert len(data) == num_bytes(num, bits)
    for start in range(0, num, BLOCK):
        block = slice(start, start + BLOCK)
        level = 2 * vector[block].abs().max() / (2 ** (bits - 1) - 1)
        error = (decode(data, num, bits)[block] - vector[block]).abs().max()
        assert error <= level


@pytest.mark.parametrize("bits", BITS)
def test_encode__mean_over_many_seeds__is_the_vector(bits: Bits) -> None:
    vector, num = numbers(BLOCK), 500
    level = 2 * vector.abs().max() / (2 ** (bits - 1) - 1)

    total = torch.zeros_like(vector)
    for seed in range(num):
        total += decode(encode(vector, bits, seed.to_bytes(SEED_BYTES)), len(vector), bits)

    # The error of one rounding has at most half a level as deviation; five of the mean's.
    assert (total / num - vector).abs().max() <= 5 * level / 2 / num**0.5


def test_encode__same_seed__same_bytes_and_another__others() -> None:
    vector = numbers(1000)

    assert encode(vector, 4, SEED) == encode(vector, 4, SEED)
    assert encode(vector, 4, SEED) != encode(vector, 4, SEED[::-1])


def test_encode__known_numbers__known_bytes() -> None:
    vector = torch.tensor([7.0, -7.0, 3.0, 0.0, -1.0])

    assert encode(vector, 4, SEED).hex() == "00" + "97030f"
    assert encode(vector / 2**20, 8, SEED)[0] == 256 - 24


@pytest.mark.parametrize("value", [0.0, 2.0**-149, -(2.0**-126), 1e38])
def test_encode__extreme_numbers__come_back_finite(value: float) -> None:
    vector = torch.full((3,), value)

    decoded = decode(encode(vector, 4, SEED), 3, 4)

    assert decoded.isfinite().all()
    assert (decoded - vector).abs().max() <= max(2.0**-126, abs(value) / 7)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_encode__not_finite__refused(value: float) -> None:
    with pytest.raises(NotFinite):
        encode(torch.tensor([0.0, value]), 8, SEED)


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (b"", 4),
        (b"\x00" + b"\x11", 4),  # short
        (b"\x00" + b"\x11\x11\x11", 4),  # long
        (b"\x00" + b"\x18\x01", 4),  # -8
        (b"\x00" + b"\x11\x11", 4),  # a fourth element
        (b"\x80" + b"\x01\x00", 4),  # in a block of zeros
        (b"\x00" + b"\x80\x00\x00", 8),  # -128
    ],
)
def test_decode__what_nobody_encodes__malformed(data: bytes, bits: Bits) -> None:
    with pytest.raises(Malformed):
        decode(data, 3, bits)
