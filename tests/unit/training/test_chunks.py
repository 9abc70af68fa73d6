"""Is a gradient cut without gap or overlap?"""

import pytest

from contracts.terms.errors import Refused
from training.stages.torch_free import chunk_bounds


@pytest.mark.parametrize("num_chunks", [0, 11])
def test_chunk_bounds__none_or_more_than_elements__refused(num_chunks: int) -> None:
    with pytest.raises(Refused, match="cannot be cut"):
        chunk_bounds(10, num_chunks)
