"""What a process must not forget: an append-only SQLite file, on disk before anything is sent.

Invariants: rows are numbered from 1 without gaps and never change; the rows of one `append` are
there together or not at all, and survive SIGKILL and power loss when it returns (synchronous FULL).
A cursor is a place in the rows up to which somebody has read; losing its last move is harmless.
Not thread-safe; one process at a time (a second one is refused).
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.terms.errors import Conflict, Malformed, Unavailable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
    sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS cursors (
    name TEXT PRIMARY KEY, sequence INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
_VERSION = 3
_READ_AT_A_TIME = 256


@dataclass(frozen=True)
class Row:
    """One fact: what kind of fact it is, and its canonical bytes."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class NumberedRow(Row):
    """A stored row with its place."""

    sequence: int


class Journal:
    """The rows in one file."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or make it.

        Raises:
            Conflict: another process has it open.
            Malformed: it is no journal of this version.
            Unavailable: the folder or the disk cannot be written.
        """
        self._path, self._closed = path, False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=0, isolation_level=None)
            self._prepare()
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise Conflict(f"{path} is in use by another process") from error
            raise Unavailable(f"cannot open {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Malformed(f"{path} is damaged: {error}") from error
        except OSError as error:
            raise Unavailable(f"cannot open {path}: {error.strerror}") from error

    def _prepare(self) -> None:
        self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        self._base.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT")
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise Malformed(f"{self._path} is of version {version}, this program reads {_VERSION}")
        self._base.execute(f"PRAGMA user_version = {_VERSION}")
        (self._length,) = self._base.execute("SELECT count(*) FROM journal").fetchone()

    def __len__(self) -> int:
        return int(self._length)

    def append(self, rows: Iterable[Row]) -> None:
        """Store `rows` in one transaction; on disk when this returns.

        Raises:
            Unavailable: the disk is full or cannot be written; nothing was stored.
        """
        numbered = [
            (self._length + offset, row.kind, row.data) for offset, row in enumerate(rows, start=1)
        ]
        if self._closed:
            raise Unavailable(f"{self._path} is closed: this process is stopping")
        try:
            self._base.execute("BEGIN IMMEDIATE")
            self._base.executemany("INSERT INTO journal VALUES (?, ?, ?)", numbered)
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise Unavailable(f"cannot write {self._path}: {error}") from error
        self._length += len(numbered)

    def rows(self, after: int = 0) -> Iterator[NumberedRow]:
        """Rows with a number above `after`, in order."""
        query = "SELECT sequence, kind, data FROM journal WHERE sequence > ? LIMIT ?"
        while found := self._base.execute(query, (after, _READ_AT_A_TIME)).fetchall():
            yield from (NumberedRow(kind, data, sequence) for sequence, kind, data in found)
            after = found[-1][0]

    def cursor(self, name: str) -> int:
        """Where the reader `name` has come to; 0 at first."""
        query = "SELECT sequence FROM cursors WHERE name = ?"
        found = self._base.execute(query, (name,)).fetchone()
        return int(found[0]) if found else 0

    def move_cursor(self, name: str, sequence: int) -> None:
        """The reader `name` has handled all rows up to `sequence`.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        try:
            self._base.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (name, sequence))
        except sqlite3.Error as error:
            raise Unavailable(f"cannot write {self._path}: {error}") from error

    def close(self) -> None:
        """Let another process open it."""
        self._closed = True
        self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
