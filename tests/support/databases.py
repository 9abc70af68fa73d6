"""Markets over a real Postgres: a cluster a process, whose databases are emptied after every test.

Transactions are real, so that row locks, read-only connections and many requests at once are what
they are in production. Deleting what a test has stored takes 3 ms, a database of its own 60 ms. The
engines stay, as they keep the SQL that they have compiled; their connections belong to the event
loops of a test and end with it.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest

from market.adapters.postgres import PostgresWork, make_engine
from market.adapters.tables import METADATA
from market.migrate import migrate
from tests.support.fakes.market_memory import MemoryWakeup
from tests.support.market_services import PostgresServer, run_postgres
from tests.support.market_world import World

_EMPTY = " ".join(
    f"IF EXISTS (SELECT FROM {table}) THEN DELETE FROM {table}; END IF;"
    for table in METADATA.tables
)


class Database:
    """One that has our tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.writing, self.reading = make_engine(url), make_engine(url, reads=True)

    def world(self) -> World:
        """A market whose storage this is."""
        wakeup = MemoryWakeup()
        return World(
            lambda: PostgresWork(self.writing, wakeup),
            lambda: PostgresWork(self.reading),
            wakeup=wakeup,
        )

    async def disconnect(self) -> None:
        """End all connections."""
        await self.writing.dispose()
        await self.reading.dispose()

    def empty(self) -> None:
        """Delete all rows."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("SET lock_timeout = '10s'")  # a transaction that a test has left open
            admin.execute(f"DO $$ BEGIN {_EMPTY} END $$".encode())


class Databases:
    """All of this process. One that was emptied is taken again."""

    def __init__(self) -> None:
        self._ends, self._idle = ExitStack(), list[Database]()
        self.taken: list[Database] = []

    @cached_property
    def server(self) -> PostgresServer:
        """The cluster."""
        folder = self._ends.enter_context(tempfile.TemporaryDirectory(prefix="postgres-"))
        return self._ends.enter_context(run_postgres(Path(folder)))

    @cached_property
    def _template(self) -> str:
        url = self.server.new_database()
        migrate(url)
        return url.rpartition("/")[2]

    def take(self) -> Database:
        """An empty database, for the test or the fixture that runs."""
        new = Database(self.server.new_database(self._template)) if not self._idle else None
        self.taken.append(new or self._idle.pop())
        return self.taken[-1]

    async def give_back(self, kept: int) -> None:
        """Empty all that were taken but the first `kept`."""
        for each in self.taken[kept:]:
            await each.disconnect()
            each.empty()
        self._idle += self.taken[kept:]
        del self.taken[kept:]

    @asynccontextmanager
    async def for_a_while(self) -> AsyncIterator[None]:
        """Part of a test; what it takes is given back at its end.

        A test that needs many markets one after the other needs few databases so, and their
        engines have compiled its SQL: a new one needs a second for that.
        """
        kept = len(self.taken)
        yield
        await self.give_back(kept)

    def end(self) -> None:
        """Stop the cluster."""
        for each in self.taken:
            _run(each.disconnect())
        self._ends.close()


def _run(ending: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(ending)


DATABASES = Databases()


def new_world() -> World:
    """A market of its own, for the test or the fixture that runs."""
    return DATABASES.take().world()


@pytest.fixture(scope="session", autouse=True)
def databases() -> Iterator[Databases]:
    """All databases of this process."""
    yield DATABASES
    DATABASES.end()


@pytest.fixture(autouse=True)
def taken(databases: Databases) -> Iterator[None]:
    """What a test takes is there until its end; what fixtures of a wider scope take, for longer."""
    kept = len(databases.taken)
    yield
    _run(databases.give_back(kept))
