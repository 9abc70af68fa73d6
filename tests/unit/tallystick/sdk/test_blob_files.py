"""A blob as a file: hashed in pieces, and there whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import TallystickError, TooLarge, WrongBytes
from market.bodies.base import MAX_BUNDLE_BYTES
from tallystick.sdk import http
from tallystick.sdk.http import measured, pieces, written
from verification.auditing import bundle, bundle_file

TEXT = bytes(range(250))


async def test_pieces__file_longer_than_one__are_its_bytes_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PIECE", 100)
    (tmp_path / "a").write_bytes(TEXT)

    found = [piece async for piece in pieces(tmp_path / "a")]

    assert b"".join(found) == TEXT and len(found) == 3
    assert measured(tmp_path / "a") == (250, blob_digest(TEXT))


def test_written__right_bytes__replace_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    with written(tmp_path / "a", blob_digest(TEXT), max_bytes=250) as append:
        append(TEXT[:100])
        append(TEXT[100:])

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == TEXT


@pytest.mark.parametrize(
    ("sent", "error"),
    [([TEXT, b"x"], TooLarge), ([TEXT[:-1]], WrongBytes), ([], WrongBytes)],
)
def test_written__anything_else__leaves_no_file(
    tmp_path: Path, sent: Sequence[bytes], error: type[TallystickError]
) -> None:
    with (
        pytest.raises(error),
        written(tmp_path / "a", blob_digest(TEXT), max_bytes=250) as append,
    ):
        for piece in sent:
            append(piece)

    assert list(tmp_path.iterdir()) == []


def test_limits__largest_bundle__is_taken_as_a_blob() -> None:
    directory = bundle_file.MAX_MEMBERS * 256

    assert bundle.MAX_BUNDLE_BYTES + directory <= MAX_BUNDLE_BYTES
