"""Is a gradient cut without gap or overlap, and are norms exact?"""

import pytest

from contracts.terms.errors import Refused
from contracts.terms.messages import NORM_SCALE, NORM_SQUARED_SCALE
from training.stages.chunks import chunk_bounds, global_norm


def test_chunk_bounds__ten_in_three__longer_first() -> None:
    assert chunk_bounds(10, 3) == ((0, 4), (4, 7), (7, 10))


@pytest.mark.parametrize("num_chunks", [0, 11])
def test_chunk_bounds__none_or_more_than_elements__refused(num_chunks: int) -> None:
    with pytest.raises(Refused, match="cannot be cut"):
        chunk_bounds(10, num_chunks)


def test_global_norm__three_four__is_five() -> None:
    assert global_norm([9 * NORM_SQUARED_SCALE, 16 * NORM_SQUARED_SCALE]) == 5 * NORM_SCALE


def test_global_norm__no_chunk__is_zero() -> None:
    assert global_norm([]) == 0


def test_global_norm__two__is_rounded_down() -> None:
    assert global_norm([2 * NORM_SQUARED_SCALE]) == 1_414_213_562
