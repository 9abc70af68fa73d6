"""What we sent, so that it happens once: the store of raw signed transactions, and its SQLite twin.

A transaction is stored before it is broadcast. `key` names the intention ("propose:3"); an
intention has at most one nonce that can still succeed, so repeating it is safe. A nonce has an
attempt for each price that was offered for it, of which the chain can run one. A chain that
forgot blocks gets the newest bytes again: same nonce, one event.
A store is of one chain, known by its first block: another one of the same id would run what was
signed for the first.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contracts.chain.connection import ChainConnection
from contracts.terms.errors import Conflict, Malformed, Unavailable, WrongConfiguration
from contracts.terms.ids import Address, Digest


@dataclass(frozen=True)
class StoredTransaction:
    """A signed transaction; `failed` once the chain ran one of its nonce and it reverted."""

    account: Address
    nonce: int
    key: str
    hash: Digest
    raw: bytes
    attempt: int = 0  # of its nonce, from 0
    failed: bool = False


class TransactionStore(Protocol):
    """Durable memory of one or more accounts' transactions on one chain."""

    async def need_chain(self, chain: ChainConnection) -> None:
        """Raises WrongConfiguration if what is stored was sent on another chain."""

    async def find(self, account: Address, key: str) -> StoredTransaction | None:
        """The newest transaction of this intention that has not failed."""

    async def attempts(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """All transactions of this nonce, in their order."""

    async def since(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """All transactions with at least this nonce, in order of nonces and attempts."""

    async def next_nonce(self, account: Address) -> int:
        """One more than the highest stored nonce; 0 for none."""

    async def add(self, transaction: StoredTransaction) -> None:
        """Store durably. Raises Conflict if this attempt of the nonce is taken."""

    async def mark_failed(self, transaction: StoredTransaction) -> None:
        """The chain ran it and it reverted: the intention of its nonce may be tried again."""


class SqliteTransactions:
    """`TransactionStore` in one SQLite file, synchronous FULL. Not concurrent: one process.

    Raises:
        Malformed: the file is no such store.
        Unavailable: it cannot be read or written now, for example because the disk is full.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        with self._reported():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS attempts (account BLOB, nonce INTEGER, key TEXT,"
                " hash BLOB, raw BLOB, attempt INTEGER, failed INTEGER,"
                " PRIMARY KEY (account, nonce, attempt))"
            )
            self._db.execute("CREATE TABLE IF NOT EXISTS chain (genesis BLOB)")

    async def need_chain(self, chain: ChainConnection) -> None:
        """See `TransactionStore.need_chain`; an empty store is of whatever chain it meets."""
        genesis = await chain.genesis()
        with self._reported():
            if self._db.execute("SELECT 1 FROM attempts").fetchone() is None:
                self._db.execute("DELETE FROM chain")
                self._db.execute("INSERT INTO chain VALUES (?)", (genesis,))
            noted = self._db.execute("SELECT genesis FROM chain").fetchone()
        if noted is None or noted[0] != genesis:
            raise another_chain(str(self._path))

    async def find(self, account: Address, key: str) -> StoredTransaction | None:
        """See `TransactionStore.find`."""
        rows = self._select("key = ? AND NOT failed", account, key)
        return rows[-1] if rows else None

    async def attempts(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """See `TransactionStore.attempts`."""
        return self._select("nonce = ?", account, nonce)

    async def since(self, account: Address, nonce: int) -> list[StoredTransaction]:
        """See `TransactionStore.since`."""
        return self._select("nonce >= ?", account, nonce)

    async def next_nonce(self, account: Address) -> int:
        """See `TransactionStore.next_nonce`."""
        rows = self._select("nonce >= ?", account, 0)
        return rows[-1].nonce + 1 if rows else 0

    async def add(self, transaction: StoredTransaction) -> None:
        """See `TransactionStore.add`."""
        t = transaction
        try:
            with self._reported():
                self._db.execute(
                    "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (t.account, t.nonce, t.key, t.hash, t.raw, t.attempt, t.failed),
                )
        except sqlite3.IntegrityError as error:
            raise Conflict(f"nonce {t.nonce} of 0x{t.account.hex()} is taken") from error

    async def mark_failed(self, transaction: StoredTransaction) -> None:
        """See `TransactionStore.mark_failed`."""
        with self._reported():
            self._db.execute(
                "UPDATE attempts SET failed = 1 WHERE account = ? AND nonce = ?",
                (transaction.account, transaction.nonce),
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path} cannot be used now: {error}") from error
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            raise Malformed(f"{self._path} is no store of transactions: {error}") from error

    def _select(self, where: str, account: Address, value: object) -> list[StoredTransaction]:
        with self._reported():
            rows = self._db.execute(
                "SELECT account, nonce, key, hash, raw, attempt, failed FROM attempts"
                f" WHERE account = ? AND {where} ORDER BY nonce, attempt",
                (account, value),
            ).fetchall()
        return [
            StoredTransaction(
                Address(account), nonce, key, Digest(name), raw, attempt, bool(failed)
            )
            for account, nonce, key, name, raw, attempt, failed in rows
        ]


def another_chain(what: str) -> WrongConfiguration:
    """The one error for what was sent on a chain that this one is not."""
    return WrongConfiguration(
        f"{what} keeps what was sent on another chain of the same id: nothing of it is sent here; "
        "name a node of that chain, or another folder"
    )
