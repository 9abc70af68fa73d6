"""Worlds over memory and over Postgres, so that one suite runs on both."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from market.adapters.postgres import PostgresWork, make_engine
from market.migrate import migrate
from tests.support.market_services import PostgresServer, run_postgres, run_redis
from tests.support.market_world import World, memory_world


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A cluster whose database `market` has our tables."""
    folder: Path = tmp_path_factory.mktemp("postgres")
    with run_postgres(folder) as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """Name of a migrated database that tests copy."""
    url = postgres.new_database()
    migrate(url)
    return url.rpartition("/")[2]


@pytest.fixture
def database(postgres: PostgresServer, template: str) -> str:
    """Address of a migrated database of this test's own."""
    return postgres.new_database(template)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis."""
    with run_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
async def postgres_world(database: str) -> AsyncIterator[World]:
    """A market over Postgres."""
    engine, reading = make_engine(database), make_engine(database, reads=True)
    yield World(lambda: PostgresWork(engine), lambda: PostgresWork(reading))
    await engine.dispose()
    await reading.dispose()


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    """A market, once over memory and once over Postgres."""
    if request.param == "memory":
        return memory_world()
    found = request.getfixturevalue("postgres_world")
    assert isinstance(found, World)
    return found
