"""The torch-free norm of a chunk's bytes is the one that peers commit to, bit for bit."""

from typing import get_args

import pytest
import torch

from contracts.terms.errors import WrongBytes
from contracts.terms.messages import GradientCodecName, SeededCodecName
from training.averaging.norms import need_norm, norm_squared
from training.averaging.sums import slice_of
from training.compression import differences
from training.stages import exact

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


@pytest.mark.parametrize("codec", get_args(SeededCodecName))
@pytest.mark.parametrize("length", LENGTHS)
def test_need_norm__seeded_codes__equals_the_norm_of_the_tensor(
    codec: SeededCodecName, length: int
) -> None:
    chunk = torch.randn(length, generator=torch.Generator().manual_seed(length))
    data = differences.encode(chunk, codec, bytes(32))
    norm = exact.norm_squared(differences.decode(data, length, codec))

    need_norm(data, norm, codec, num_elements=length)
    with pytest.raises(WrongBytes):
        need_norm(data, norm + 1, codec, num_elements=length)
