"""The head of a weights file is a stranger's: reading it takes no longer than its length."""

import json

import pytest

from contracts.terms.errors import Malformed
from training.models.sources import BytesSource
from training.models.weights import stored_weights


@pytest.mark.parametrize("shape", [[9] * 200_000, [2**60, 2**60], [1] * 9])
def test_stored_weights__shape_of_no_tensor__malformed_at_once(shape: list[int]) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
    head = json.dumps({"a": entry}).encode()
    data = len(head).to_bytes(8, "little") + head + bytes(4)

    with pytest.raises(Malformed, match=r"tensor a (lies outside|has \d+ dimensions)"):
        stored_weights(BytesSource(data), {"a": (1,)}, what="a file")
