"""The file in which the coordinator keeps means: from several threads, and when it ends."""

from pathlib import Path

import pytest

from contracts.terms.errors import Unavailable
from contracts.terms.ids import Digest
from training.coordinator.means import MeansFile

NAME = Digest(bytes(32))


def test_means_file__opened_again__has_what_was_put_until_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "means.sqlite"
    first = MeansFile(path)
    first.put(1, NAME, b"mean")
    first.close()
    again = MeansFile(path)

    with pytest.raises(Unavailable):  # an error that callers know
        first.find(NAME)
    assert again.find(NAME) == b"mean"
    again.drop(1)
    assert again.find(NAME) is None
    again.close()
