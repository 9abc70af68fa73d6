"""The file in which the coordinator keeps means: from several threads, and when it ends."""

import sqlite3
import threading
from pathlib import Path

import pytest

from contracts.terms.errors import Unavailable
from contracts.terms.ids import Digest
from training.coordinator.means import MeansFile

NAME = Digest(bytes(32))


class Slow:
    """A connection whose statements take as long as a test wants."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base, self.said = base, list[str]()
        self.running, self.may_end = threading.Event(), threading.Event()

    def execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        """Once the test allows it."""
        self.running.set()
        self.may_end.wait(60)
        self.said.append("executed")
        return self._base.execute(statement, values)

    def close(self) -> None:
        """At once."""
        self.said.append("closed")
        self._base.close()


def test_means_file__closed_while_a_statement_runs__waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MeansFile(tmp_path / "means.sqlite")
    slow = Slow(file._base)
    monkeypatch.setattr(file, "_base", slow)
    dropping = threading.Thread(target=file.drop, args=(1,))
    closing = threading.Thread(target=file.close)

    dropping.start()
    slow.running.wait(60)
    closing.start()
    closing.join(0.005)
    slow.may_end.set()
    dropping.join(60)
    closing.join(60)

    assert slow.said == ["executed", "closed"]


def test_means_file__after_its_end__is_refused_by_an_error_that_callers_know(
    tmp_path: Path,
) -> None:
    file = MeansFile(tmp_path / "means.sqlite")
    file.put(1, NAME, b"mean")
    file.close()

    with pytest.raises(Unavailable):
        file.find(NAME)


def test_means_file__opened_again__has_what_was_put_until_it_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "means.sqlite"
    first = MeansFile(path)
    first.put(1, NAME, b"mean")
    first.close()
    again = MeansFile(path)

    assert again.find(NAME) == b"mean"
    again.drop(1)
    assert again.find(NAME) is None
    again.close()
