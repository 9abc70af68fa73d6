"""Codes of differences: what is lost, by whose choice, and what nobody can have made."""

import pytest
import torch

from contracts.terms.errors import Malformed, NotFinite
from contracts.terms.messages import SeededCodecName
from training.compression.differences import decode, encode, nearest
from training.compression.formats import SEEDED_BLOCK, part_bytes
from training.compression.seeded import largest_code
from training.philox import SEED_BYTES

SEED = bytes(range(SEED_BYTES))
CODECS: list[SeededCodecName] = ["seeded4", "seeded8"]


def numbers(num: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, generator=generator) * 1e-3


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("num", [1, 7, SEEDED_BLOCK, SEEDED_BLOCK + 1, 10_001])
def test_encode__any_length__within_one_level_of_each_element(
    codec: SeededCodecName, num: int
) -> None:
    vector = numbers(num)

    data = encode(vector, codec, SEED)

    assert len(data) == part_bytes(codec, num)
    for start in range(0, num, SEEDED_BLOCK):
        block = slice(start, start + SEEDED_BLOCK)
        level = 2 * vector[block].abs().max() / largest_code(codec)
        error = (decode(data, num, codec)[block] - vector[block]).abs().max()
        assert error <= level


@pytest.mark.parametrize("codec", CODECS)
def test_encode__mean_over_many_seeds__is_the_vector(codec: SeededCodecName) -> None:
    vector, num = numbers(SEEDED_BLOCK), 500
    level = 2 * vector.abs().max() / largest_code(codec)

    total = torch.zeros_like(vector)
    for seed in range(num):
        total += decode(encode(vector, codec, seed.to_bytes(SEED_BYTES)), len(vector), codec)

    # The error of one rounding has at most half a level as deviation; five of the mean's.
    assert (total / num - vector).abs().max() <= 5 * level / 2 / num**0.5


def test_encode__same_seed__same_bytes_and_another__others() -> None:
    vector = numbers(1000)

    assert encode(vector, "seeded4", SEED) == encode(vector, "seeded4", SEED)
    assert encode(vector, "seeded4", SEED) != encode(vector, "seeded4", SEED[::-1])


def test_encode__known_numbers__known_bytes() -> None:
    vector = torch.tensor([7.0, -7.0, 3.0, 0.0, -1.0])

    assert encode(vector, "seeded4", SEED).hex() == "00" + "97030f"
    assert encode(vector / 2**20, "seeded8", SEED)[0] == 256 - 24


@pytest.mark.parametrize("value", [0.0, 2.0**-149, -(2.0**-126), 1e38])
def test_encode__extreme_numbers__come_back_finite(value: float) -> None:
    vector = torch.full((3,), value)

    decoded = decode(encode(vector, "seeded4", SEED), 3, "seeded4")

    assert decoded.isfinite().all()
    assert (decoded - vector).abs().max() <= max(2.0**-126, abs(value) / 7)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_encode__not_finite__refused(value: float) -> None:
    with pytest.raises(NotFinite):
        encode(torch.tensor([0.0, value]), "seeded8", SEED)


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        (b"", "seeded4"),
        (b"\x00" + b"\x11", "seeded4"),  # short
        (b"\x00" + b"\x11\x11\x11", "seeded4"),  # long
        (b"\x00" + b"\x18\x01", "seeded4"),  # -8
        (b"\x00" + b"\x11\x11", "seeded4"),  # a fourth element
        (b"\x80" + b"\x01\x00", "seeded4"),  # in a block of zeros
        (b"\x00" + b"\x80\x00\x00", "seeded8"),  # -128
    ],
)
def test_decode__what_nobody_encodes__malformed(data: bytes, codec: SeededCodecName) -> None:
    with pytest.raises(Malformed):
        decode(data, 3, codec)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 0.1])
def test_nearest__bytes_of_a_vector_with_noise__no_farther_than_the_noise(
    codec: SeededCodecName, noise: float
) -> None:
    own = numbers(20_001) * torch.exp(numbers(20_001, seed=1) * 1e3)
    other = own * (1 + noise * 1e3 * numbers(len(own), seed=2))  # moves scales of blocks, too

    found = nearest(own, encode(other, codec, SEED), codec, SEED)

    assert distance(found, own) <= distance(other, own)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.9, 0.98, 1.02, 1.1, 2.0, -1.0])
@pytest.mark.parametrize("codec", CODECS)
def test_nearest__bytes_of_a_vector_that_was_scaled__is_far(
    codec: SeededCodecName, factor: float
) -> None:
    own = numbers(20_001)

    found = nearest(own, encode(factor * own, codec, SEED), codec, SEED)

    assert distance(found, own) > 1e-3


def test_nearest__scales_so_large_that_codes_say_nothing__is_far() -> None:
    own = numbers(SEEDED_BLOCK)
    data = bytes([100]) + bytes(SEEDED_BLOCK // 2)

    found = nearest(own, data, "seeded4", SEED)

    assert distance(found, own) > 1e3
