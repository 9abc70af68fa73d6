"""Norms of shards and buckets are those of the numbers that their bytes spell."""

from fractions import Fraction
from typing import get_args

import pytest
import torch

from contracts.terms.errors import WrongBytes
from contracts.terms.messages import NORM_SQUARED_SCALE, GradientCodecName, SeededCodecName
from training.averaging.norms import need_norm, norm_squared
from training.averaging.sums import slice_of, vector_of
from training.compression import differences
from training.stages.exact import to_wire

LENGTHS = (1, 2, 3, 4, 5, 31, 32, 33, 1000, 4097, 70_001)


@pytest.mark.parametrize("codec", get_args(GradientCodecName))
def test_slice_of__random_numbers__norm_is_that_of_the_numbers_that_are_read(
    codec: GradientCodecName,
) -> None:
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(length)
        magnitudes = torch.rand(length, generator=generator) * 8 - 6
        chunk = torch.randn(length, generator=generator) * 10**magnitudes

        sent = slice_of(chunk, codec)

        read = vector_of(sent.data, codec).double()
        exact = sum(Fraction(each) ** 2 for each in read.tolist()) * NORM_SQUARED_SCALE
        assert sent.norm_squared == pytest.approx(float(exact), rel=1e-12, abs=1)


@pytest.mark.parametrize("codec", get_args(SeededCodecName))
@pytest.mark.parametrize("length", LENGTHS)
def test_need_norm__seeded_codes__equals_the_norm_of_the_tensor(
    codec: SeededCodecName, length: int
) -> None:
    chunk = torch.randn(length, generator=torch.Generator().manual_seed(length))
    data = differences.encode(chunk, codec, bytes(32))
    norm = norm_squared(to_wire(differences.decode(data, length, codec)))

    need_norm(data, norm, codec, num_elements=length)
    with pytest.raises(WrongBytes):
        need_norm(data, norm + 1, codec, num_elements=length)
