"""Advisory locks in Postgres: `market.service.ports.Locks` over all workers and machines.

A lock is a transaction of its own, on a connection of its own: it ends with whoever holds it, also
if that is killed. Names are hashed to 64 bits; two that collide wait for each other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import TextClause, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from contracts.terms.digest import digest
from contracts.terms.errors import ServiceUnreachable

_HOLD = text("SELECT pg_advisory_xact_lock(:name)")
_TRY = text("SELECT pg_try_advisory_xact_lock(:name)")


class PostgresLocks:
    """Waits as long as a statement may take at most."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """See `Locks.hold`."""
        async with self._connection() as connection:
            await _run(connection, _HOLD, name)
            yield

    @asynccontextmanager
    async def try_hold(self, name: str) -> AsyncIterator[bool]:
        """See `Locks.try_hold`."""
        async with self._connection() as connection:
            yield bool(await _run(connection, _TRY, name))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        try:
            connection = await self._engine.connect()
        except SQLAlchemyError as error:
            raise _unreachable(error) from error
        try:
            yield connection
        finally:
            await connection.close()  # which ends its transaction


async def _run(connection: AsyncConnection, query: TextClause, name: str) -> object:
    key = int.from_bytes(digest("lock", name.encode())[:8], "big", signed=True)
    try:
        return await connection.scalar(query, {"name": key})
    except SQLAlchemyError as error:
        raise _unreachable(error) from error


def _unreachable(error: SQLAlchemyError) -> ServiceUnreachable:
    return ServiceUnreachable(f"database: {error!s:.200}")
