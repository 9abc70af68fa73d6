"""How long a chunk is, from its wire bytes alone."""

import struct

import pytest

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.messages import GradientCodecName
from training.averaging.norms import need_norm, norm_squared

SCALE = 10**12
WIRE: dict[GradientCodecName, bytes] = {
    "none": struct.pack("<3f", 3, -4, 0.5),
    "float16": struct.pack("<3e", 3, -4, 0.5),
    "bfloat16": b"".join(struct.pack("<f", value)[2:] for value in (3, -4, 0.5)),
}


@pytest.mark.parametrize("codec", WIRE)
def test_norm_squared__three_numbers__is_the_sum_of_their_squares(codec: GradientCodecName) -> None:
    assert norm_squared(WIRE[codec], codec) == 25 * SCALE + SCALE // 4
    assert norm_squared(b"", codec) == 0


def test_norm_squared__inf_or_half_an_element__is_refused() -> None:
    with pytest.raises(NotFinite):
        norm_squared(struct.pack("<2f", 1, float("inf")))
    with pytest.raises(Malformed):
        norm_squared(b"123456")


def test_need_norm__one_grain_too_long__is_refused() -> None:
    need_norm(WIRE["none"], 25 * SCALE + SCALE // 4)

    with pytest.raises(WrongBytes):
        need_norm(WIRE["none"], 25 * SCALE + SCALE // 4 - 1)
