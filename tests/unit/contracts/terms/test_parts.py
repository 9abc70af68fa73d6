"""Does an index list what it says, and nothing that it cannot?"""

from typing import Any

import pytest

from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, TallystickError, TooLarge, UnknownVersion
from contracts.terms.ids import Digest
from contracts.terms.parts import MAX_PART_BYTES, MAX_PARTS, Parts

A, B, C = (Digest(bytes([number]) * 32) for number in range(3))
TEN = Parts(num_bytes=10, part_bytes=4, parts=(A, B, C))


def test_parts__last_one__is_what_is_left() -> None:
    assert list(TEN.sizes()) == [(A, 4), (B, 4), (C, 2)]


@pytest.mark.parametrize(
    ("start", "end", "pieces"),
    [
        (0, 10, [(0, 0, 4), (1, 0, 4), (2, 0, 2)]),
        (3, 5, [(0, 3, 4), (1, 0, 1)]),
        (4, 8, [(1, 0, 4)]),
        (9, 10, [(2, 1, 2)]),
        (7, 7, []),
    ],
)
def test_pieces__any_bytes__are_found_in_order(
    start: int, end: int, pieces: list[tuple[int, int, int]]
) -> None:
    assert list(TEN.pieces(start, end)) == pieces


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (0, 11), (11, 12)])
def test_pieces__bytes_that_are_not_there__malformed(start: int, end: int) -> None:
    with pytest.raises(Malformed):
        list(TEN.pieces(start, end))


def test_decoded__what_was_encoded__is_the_same() -> None:
    assert Parts.decoded(TEN.encoded()) == TEN


def test_decoded__most_parts_there_are__fits_the_bound() -> None:
    most = Parts(
        num_bytes=MAX_PARTS * MAX_PART_BYTES, part_bytes=MAX_PART_BYTES, parts=(A,) * MAX_PARTS
    )

    assert len(most.encoded()) <= Parts.max_bytes
    assert Parts.decoded(most.encoded()) == most


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"parts": [A, B]}, Malformed),
        ({"parts": [A, B, C, A]}, Malformed),
        ({"parts": []}, Malformed),
        ({"num_bytes": 13}, Malformed),
        ({"num_bytes": 0, "parts": []}, Malformed),
        ({"part_bytes": 0}, Malformed),
        ({"part_bytes": MAX_PART_BYTES + 1, "parts": [A]}, Malformed),
        ({"part_bytes": 1, "num_bytes": MAX_PARTS + 1, "parts": [A] * (MAX_PARTS + 1)}, Malformed),
        ({"more": 1}, Malformed),
        ({"kind": 1}, Malformed),
        ({"kind": "parts.v2"}, UnknownVersion),
        ({"more": bytes(Parts.max_bytes)}, TooLarge),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, dict) else "",
)
def test_decoded__does_not_fit_itself__refused(
    changed: dict[str, Any], error: type[TallystickError]
) -> None:
    with pytest.raises(error):
        Parts.decoded(encode(TEN.value() | changed))


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x00", encode([1]), encode({}), encode(TEN.value())[:-1]]
)
def test_decoded__no_index__malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Parts.decoded(data)
