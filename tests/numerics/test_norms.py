"""The torch-free norm of a chunk's bytes is the one that peers commit to, bit for bit."""

from typing import get_args

import pytest
import torch

from contracts.terms.messages import GradientCodecName
from training.averaging.norms import norm_squared
from training.averaging.sums import slice_of

LENGTHS = (1, 2, 3, 4, 5, 31, 32, 33, 1000, 4097, 70_001)


@pytest.mark.parametrize("codec", get_args(GradientCodecName))
def test_norm_squared__random_numbers__equals_the_norm_of_the_tensor(
    codec: GradientCodecName,
) -> None:
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(length)
        magnitudes = torch.rand(length, generator=generator) * 8 - 6
        chunk = torch.randn(length, generator=generator) * 10**magnitudes

        sent = slice_of(chunk, codec)

        assert norm_squared(sent.data, codec) == sent.norm_squared
