"""A market over a real Postgres (`tests.support.databases`), and a Redis."""

from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.support.databases import Database, Databases
from tests.support.market_services import PostgresServer, run_redis
from tests.support.market_world import World


@pytest.fixture
def postgres(databases: Databases) -> PostgresServer:
    """A running cluster."""
    return databases.server


@pytest.fixture
def storage(databases: Databases, taken: None) -> Database:
    """A database with empty tables."""
    return databases.take()


@pytest.fixture
def database(storage: Database) -> str:
    """Its address."""
    return storage.url


@pytest.fixture
def engines(storage: Database) -> tuple[AsyncEngine, AsyncEngine]:
    """What writes and what only reads."""
    return storage.writing, storage.reading


@pytest.fixture
def world(storage: Database) -> World:
    """A market."""
    return storage.world()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis."""
    with run_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url
