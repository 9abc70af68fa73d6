"""Rows in Postgres: SQLAlchemy 2 Core over psycopg 3, one connection per transaction.

Read committed; what must not change under a use case is locked by it. Rows that another transaction
holds are skipped by `where(lock=True)` (SKIP LOCKED) and waited for by `lock`. As no statement sees
what another saw, use cases that only read need no transaction: an engine that `reads` spares BEGIN
and ROLLBACK, and Postgres refuses what would change or lock a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from select import POLLIN, poll
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Select,
    Table,
    and_,
    any_,
    delete,
    event,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidatePoolError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from contracts.terms.errors import Conflict, InvariantBroken, ServiceUnreachable
from contracts.terms.moments import UnixMillis
from market.adapters.tables import METADATA
from market.service.feeds import numbered, topic_of
from market.service.ports import Place, Rows, UnitOfWork, Wakeup
from market.service.rows import AUTOMATIC, EventRow, FeedRow, Row

R = TypeVar("R", bound=Row)

CONNECT_SECONDS = 5
STATEMENT_MILLIS = 30_000


def make_engine(url: str, *, pool_size: int = 5, reads: bool = False) -> AsyncEngine:
    """An engine for `url` (`postgresql://...`); connections are made on first use.

    One that `reads` can do nothing else.
    """
    prefix, _, rest = url.partition("://")
    if prefix.split("+")[0] not in ("postgresql", "postgres"):
        raise InvariantBroken("the database is a PostgreSQL: postgresql://user@host/name")
    options = f"-c statement_timeout={STATEMENT_MILLIS}"
    if reads:
        options += " -c default_transaction_read_only=on"
    engine = create_async_engine(
        f"postgresql+psycopg://{rest}",
        isolation_level="AUTOCOMMIT" if reads else "READ COMMITTED",
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=10,
        connect_args={
            "connect_timeout": CONNECT_SECONDS,
            "options": options,
            "application_name": "tallystick",
        },
    )
    event.listen(engine.sync_engine, "checkout", _check_alive)
    return engine


def _check_alive(connection: Any, *_: object) -> None:
    """Have a connection that the server has ended made again, so that it costs nobody a request.

    Nothing comes over one that is idle but its end; asking the server would cost each use a query.
    """
    socket = poll()
    socket.register(connection.driver_connection.pgconn.socket, POLLIN)
    if socket.poll(0):
        raise InvalidatePoolError


class PostgresRows:
    """`Rows` over a connection in a transaction."""

    def __init__(self, cls: type[Any], connection: AsyncConnection) -> None:
        self._cls, self._connection = cls, connection
        self._table = METADATA.tables[cls.TABLE]
        self._key = [self._table.c[name] for name in cls.KEY]

    async def get(self, *key: object) -> Any:
        """See `Rows.get`."""
        return await self._one(select(self._table).where(*self._is(key)))

    async def lock(self, *key: object) -> Any:
        """See `Rows.lock`."""
        return await self._one(select(self._table).where(*self._is(key)).with_for_update())

    async def add(self, row: Any) -> Any:
        """See `Rows.add`."""
        values, statement = self._values(row), insert(self._table)
        if len(values) == len(self._table.columns):
            await self._execute(statement, values)
            return row
        stored = await self._execute(statement.returning(self._table), values)
        return self._cls(*stored.one())

    async def add_all(self, rows: Sequence[Any]) -> None:
        """See `Rows.add_all`."""
        if rows:
            await self._execute(insert(self._table), [self._values(row) for row in rows])

    async def put(self, row: Any) -> None:
        """See `Rows.put`."""
        await self._execute(_replacement(self._table), self._values(row))

    async def put_all(self, rows: Sequence[Any]) -> None:
        """See `Rows.put_all`."""
        if rows:
            await self._execute(_replacement(self._table), [self._values(row) for row in rows])

    async def put_later(self, row: Any, column: str) -> bool:
        """See `Rows.put_later`."""
        later = _replacement(self._table, column).returning(*self._key)
        return (await self._execute(later, self._values(row))).first() is not None

    async def remove(self, *key: object) -> None:
        """See `Rows.remove`."""
        first = self._key[: len(key)]
        begins = [column == value for column, value in zip(first, key, strict=True)]
        await self._execute(delete(self._table).where(*begins))

    async def where(
        self,
        *,
        order: str = "",
        after: object = None,
        limit: int | None = None,
        lock: bool = False,
        **equals: object,
    ) -> list[Any]:
        """See `Rows.where`."""
        if () in equals.values():
            return []
        statement = select(self._table).where(*self._equal(equals)).limit(limit)
        if order:
            column, descends = self._table.c[order.removeprefix("-")], order.startswith("-")
            statement = statement.order_by(column.desc() if descends else column)
            if after is not None:
                statement = statement.where(self._beyond(column, after, descends=descends))
        if lock:
            statement = statement.with_for_update(skip_locked=True)
        found = await self._execute(statement.order_by(*self._key))
        return [self._cls(*row) for row in found]  # columns are in the order of its fields

    async def count(self, **equals: object) -> int:
        """See `Rows.count`."""
        counted = select(func.count()).select_from(self._table).where(*self._equal(equals))
        return int((await self._execute(counted)).scalar_one())

    def _values(self, row: Any) -> dict[str, object]:
        """A row by columns, but for a number that the database is to give."""
        values = {each.name: getattr(row, each.name) for each in self._table.columns}
        if (automatic := AUTOMATIC.get(self._cls)) and not values[automatic]:
            del values[automatic]
        return values

    def _is(self, key: tuple[object, ...]) -> list[ColumnElement[bool]]:
        return [column == value for column, value in zip(self._key, key, strict=True)]

    def _equal(self, equals: Mapping[str, object]) -> list[ColumnElement[bool]]:
        return [_equals(self._table.c[name], value) for name, value in equals.items()]

    def _beyond(self, column: Column[Any], after: Any, *, descends: bool) -> ColumnElement[bool]:
        value = after.value if isinstance(after, Place) else after
        beyond = column < value if descends else column > value
        if not isinstance(after, Place):
            return beyond
        return or_(beyond, and_(column == value, tuple_(*self._key) > after.key))

    async def _one(self, statement: Select[Any]) -> Any:
        row = (await self._execute(statement)).one_or_none()
        return None if row is None else self._cls(*row)

    async def _execute(
        self,
        statement: Executable,
        values: dict[str, object] | list[dict[str, object]] | None = None,
    ) -> Any:
        try:
            return await self._connection.execute(statement, values)
        except IntegrityError as error:
            raise Conflict(f"{self._cls.TABLE}: {_constraint(error)}") from error
        except SQLAlchemyError as error:
            raise _unreachable(error) from error


@cache  # made of every column: building it anew would cost more than all other statements
def _replacement(table: Table, column: str = "") -> Insert:
    """Add a row, or put it in the place of the one with its key, if that has less in `column`."""
    statement = insert(table)
    new = {each.name: statement.excluded[each.name] for each in table.c if not each.primary_key}
    if not new:
        return statement.on_conflict_do_nothing()
    has_less = table.c[column] < new[column] if column else None
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=new, where=has_less
    )


def _equals(column: Column[Any], value: object) -> ColumnElement[bool]:
    if isinstance(value, tuple):
        # One array, so that thousands of values are one parameter of one statement.
        return column == any_(literal(list(value), ARRAY(column.type)))
    return column == value


class PostgresWork:
    """`UnitOfWork` over an engine."""

    def __init__(self, engine: AsyncEngine, wakeup: Wakeup | None = None) -> None:
        self._engine, self._wakeup = engine, wakeup
        self._connection: AsyncConnection | None = None
        self._depth = 0
        self._topics: list[str] = []
        self._told: list[EventRow] = []

    async def __aenter__(self) -> UnitOfWork:
        if self._depth == 0:
            try:
                self._connection = await self._engine.connect()
                await self._connection.begin()
            except (SQLAlchemyError, OSError) as error:
                await self._release()
                raise _unreachable(error) from error
        self._depth += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        topics, self._topics = self._topics, []
        told, self._told = self._told, []
        connection = self._open()
        try:
            if error[0] is None:
                await _append(told, connection)
                await connection.commit()
            else:
                await connection.rollback()
        except SQLAlchemyError as failure:
            if error[0] is None:  # what happened first is what the caller has to see
                raise _unreachable(failure) from failure
        finally:
            await self._release()
        if error[0] is None and topics and self._wakeup is not None:
            await self._wakeup.wake(dict.fromkeys(topics))

    def __getitem__(self, cls: type[R]) -> Rows[R]:
        return PostgresRows(cls, self._open())

    def wake(self, topic: str) -> None:
        """See `UnitOfWork.wake`."""
        self._topics.append(topic)

    def tell(self, feed: bytes, kind: str, at: UnixMillis, data: bytes) -> None:
        """See `UnitOfWork.tell`."""
        self._told.append(EventRow(feed, 0, kind, at, data))
        self._topics.append(topic_of(feed))

    def _open(self) -> AsyncConnection:
        if self._connection is None:
            raise InvariantBroken("rows outside of a transaction")
        return self._connection

    async def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close()
            except SQLAlchemyError:
                await connection.invalidate()


async def _append(told: Sequence[EventRow], connection: AsyncConnection) -> None:
    """Number and store live events, feed by feed in one order for all: nobody waits in a circle."""
    feeds, events = METADATA.tables[FeedRow.TABLE], METADATA.tables[EventRow.TABLE]
    for feed in sorted({row.feed for row in told}):
        of_feed = [row for row in told if row.feed == feed]
        statement = insert(feeds).values(feed=feed, length=len(of_feed))
        longer = statement.on_conflict_do_update(
            index_elements=["feed"], set_={"length": feeds.c.length + len(of_feed)}
        )
        length = (await connection.execute(longer.returning(feeds.c.length))).scalar_one()
        rows = [asdict(row) for row in numbered(of_feed, length)]
        await connection.execute(insert(events), rows)


def _unreachable(error: Exception) -> Exception:
    """Lost connections, deadlocks and time-outs may go better next time; a bug will not."""
    if isinstance(error, DBAPIError) and not _is_transient(error):
        return InvariantBroken(f"database: {error.orig!r}")
    return ServiceUnreachable(f"database: {type(error).__name__}: {error!s:.200}")


def _is_transient(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None) or ""
    # 08 connection, 40 rollback (deadlock), 53 resources, 55 lock, 57 shutdown and cancel
    return error.connection_invalidated or state[:2] in ("", "08", "40", "53", "55", "57")


def _constraint(error: IntegrityError) -> str:
    diagnostics = getattr(error.orig, "diag", None)
    name = getattr(diagnostics, "constraint_name", None)
    return f"{name} is taken" if name else "taken"
