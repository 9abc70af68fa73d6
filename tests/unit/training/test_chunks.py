"""Is a gradient cut without gap or overlap?"""

import pytest

from contracts.terms.errors import Refused
from training.stages.torch_free import chunk_bounds


def test_chunk_bounds__ten_in_three__longer_first() -> None:
    assert chunk_bounds(10, 3) == ((0, 4), (4, 7), (7, 10))


@pytest.mark.parametrize("num_chunks", [0, 11])
def test_chunk_bounds__none_or_more_than_elements__refused(num_chunks: int) -> None:
    with pytest.raises(Refused, match="cannot be cut"):
        chunk_bounds(10, num_chunks)
