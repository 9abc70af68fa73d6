"""Markets over a real Postgres: one database a worker, emptied after every test.

Transactions are real, so that row locks, read-only connections and many requests at once are what
they are in production. Deleting what a test has stored takes 3 ms, a database of its own 60 ms. The
engines stay, as they keep the SQL that they have compiled; their connections belong to the event
loop of a test and end with it.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from market.adapters.postgres import PostgresWork, make_engine
from market.adapters.tables import METADATA
from market.migrate import migrate
from tests.support.market_services import PostgresServer, run_postgres, run_redis
from tests.support.market_world import World

EMPTY = " ".join(
    f"IF EXISTS (SELECT FROM {table}) THEN DELETE FROM {table}; END IF;"
    for table in METADATA.tables
)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A running cluster."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    with run_postgres(folder) as server:
        yield server


@pytest.fixture(scope="session")
def migrated(postgres: PostgresServer) -> str:
    """Address of this worker's database, which has our tables."""
    url = postgres.new_database()
    migrate(url)
    return url


@pytest.fixture
def database(migrated: str) -> Iterator[str]:
    """Address of a database with empty tables."""
    yield migrated
    with psycopg.connect(migrated, autocommit=True) as admin:
        admin.execute("SET lock_timeout = '10s'")  # a transaction that a test has left open
        admin.execute(f"DO $$ BEGIN {EMPTY} END $$".encode())


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis."""
    with run_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def engines(migrated: str) -> tuple[AsyncEngine, AsyncEngine]:
    """What writes and what only reads."""
    return make_engine(migrated), make_engine(migrated, reads=True)


@pytest.fixture
async def world(database: str, engines: tuple[AsyncEngine, AsyncEngine]) -> AsyncIterator[World]:
    """A market."""
    writing, reading = engines
    yield World(lambda: PostgresWork(writing), lambda: PostgresWork(reading))
    await writing.dispose()
    await reading.dispose()
