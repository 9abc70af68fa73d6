"""The journal: rows together or not at all, one process at a time, clear errors."""

import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.terms.errors import Conflict, Malformed, Unavailable
from training.journal import Journal, Row


def test_journal__one_bad_row_among_good_ones__none_is_stored(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        rows = [Row("a", b"1"), Row("b", None)]  # type: ignore[arg-type]  # on purpose

        with pytest.raises(Unavailable):
            journal.append(rows)

        assert (len(journal), list(journal.rows())) == (0, [])


def test_journal__opened_twice__second_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(Conflict):
        Journal(tmp_path / "j")


def test_journal__not_a_journal__is_malformed(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"something else entirely" * 100)

    with pytest.raises(Malformed):
        Journal(tmp_path / "j")


def test_journal__of_a_newer_version__is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    base = sqlite3.connect(tmp_path / "j")
    base.execute("PRAGMA user_version = 9")
    base.close()

    with pytest.raises(Malformed, match="version 9"):
        Journal(tmp_path / "j")


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_journal__disk_full__one_clear_error_and_the_rows_before_stay(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append([Row("a", b"1")])

        with largest_file(64_000), pytest.raises(Unavailable, match="cannot write"):
            journal.append([Row("b", bytes(200_000))])

        journal.append([Row("c", b"3")])
        assert [row.kind for row in journal.rows()] == ["a", "c"]
