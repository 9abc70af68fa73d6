"""Adapters keep what their ports promise, the real ones and their twins alike."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from contracts.chain.transactions import SqliteTransactions, StoredTransaction, TransactionStore
from contracts.terms.amounts import UINT96_MAX, BaseUnits
from contracts.terms.errors import (
    Conflict,
    InvariantBroken,
    ServiceUnreachable,
)
from contracts.terms.ids import Address, Digest, SessionKey
from contracts.terms.moments import UnixMillis
from market.adapters.locks import PostgresLocks
from market.adapters.redis_wakeup import RedisWakeup
from market.adapters.tables import METADATA
from market.adapters.transactions import RowTransactions
from market.migrate import main, migrate
from market.service.ports import Place, UnitOfWork
from market.service.rows import (
    AuditorRow,
    BlobUploadRow,
    CursorRow,
    FaucetRow,
    FreeMoneyRow,
    HeartbeatRow,
)
from tests.support.market_services import PostgresServer
from tests.support.market_world import World
from tests.support.patience import patience

ACCOUNT = Address(bytes([3]) * 20)


OTHER = Digest(bytes([9]) * 32)


def cursor(number: int, **changed: object) -> CursorRow:
    row = CursorRow(number, Digest(bytes(32)))
    return replace(row, **changed)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ rows


async def _tell(work: UnitOfWork) -> None:
    work.tell(b"feed", "kind", UnixMillis(1), b"{}")


async def test_rows__many_at_once__are_what_one_by_one_makes(world: World) -> None:
    uploads = [
        BlobUploadRow(0, ACCOUNT, Digest(bytes(32)), size, UnixMillis(1)) for size in range(3)
    ]
    async with world.new_work() as work:
        await work[BlobUploadRow].add_all(uploads)
        await work[BlobUploadRow].add_all([])
        await work[CursorRow].add(cursor(1))
        await work[CursorRow].put_all([cursor(2), cursor(1, hash=OTHER)])
        await work[CursorRow].put_all([])
        await work[BlobUploadRow].add(uploads[0])
    with pytest.raises(Conflict):
        async with world.new_work() as work:
            await work[CursorRow].add_all([cursor(3), cursor(2)])

    async with world.new_reading() as work:
        found = await work[BlobUploadRow].where(order="number")
        cursors = await work[CursorRow].where()
    numbers = [row.number for row in found]
    assert numbers == sorted(set(numbers)) and 0 not in numbers
    assert [row.num_bytes for row in found] == [0, 1, 2, 0]
    assert cursors == [cursor(1, hash=OTHER), cursor(2)]


async def test_reading__what_changes_or_locks__is_refused(world: World) -> None:
    async with world.new_work() as work:
        await work[CursorRow].add(cursor(1))

    writes: tuple[Callable[[UnitOfWork], Awaitable[object]], ...] = (
        lambda work: work[CursorRow].add(cursor(2)),
        lambda work: work[CursorRow].put(cursor(1, hash=OTHER)),
        lambda work: work[CursorRow].remove(1),
        lambda work: work[CursorRow].lock(1),
        lambda work: work[CursorRow].where(lock=True),
        _tell,
    )
    for write in writes:
        with pytest.raises(InvariantBroken):
            async with world.new_reading() as work:
                await write(work)

    async with world.new_reading() as work:
        assert await work[CursorRow].where() == [cursor(1)]


async def test_rows__postgres_ended_idle_connections__nobody_notices(
    world: World, database: str
) -> None:
    makers = (world.new_work, world.new_reading)
    for new_work in makers:
        async with new_work() as work:
            assert await work[CursorRow].where() == []

    name = database.rpartition("/")[2]
    with psycopg.connect(database, autocommit=True) as admin:
        ended = admin.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s and pid <> pg_backend_pid()",
            [name],
        ).fetchall()

    assert ended == [(True,), (True,)]
    for new_work in makers:
        async with new_work() as work:
            assert await work[CursorRow].where() == []


async def test_rows__largest_amounts__come_back_as_they_were(world: World) -> None:
    row = FreeMoneyRow(ACCOUNT, BaseUnits(UINT96_MAX))

    async with world.new_work() as work:
        await work[FreeMoneyRow].put(row)
    async with world.new_work() as work:
        assert await work[FreeMoneyRow].get(ACCOUNT) == row


async def test_rows__where__filters_sorts_and_pages(world: World) -> None:
    async with world.new_work() as work:
        for number in range(1, 8):
            state = "given" if number % 2 else "asked"
            row = FaucetRow(ACCOUNT, number, UnixMillis(1), 1, BaseUnits(1), state)
            await work[FaucetRow].add(row)
    async with world.new_work() as work:
        rows = work[FaucetRow]
        assert [row.number for row in await rows.where(state="given")] == [1, 3, 5, 7]
        assert [row.number for row in await rows.where(order="-number", limit=2)] == [7, 6]
        assert [row.number for row in await rows.where(order="number", after=5)] == [6, 7]
        assert [row.number for row in await rows.where(order="-number", after=3)] == [2, 1]
        assert [row.number for row in await rows.where(number=(2, 9))] == [2]
        assert await rows.where(number=()) == []
        assert len(await rows.where(refusal=None)) == 7


def heartbeat(key: int, at: int) -> HeartbeatRow:
    return HeartbeatRow(Digest(bytes([key]) * 32), UnixMillis(at), UnixMillis(at))


async def test_rows__behind_a_place__begin_with_the_next_of_equal_values(world: World) -> None:
    rows = [heartbeat(key, at) for key, at in ((1, 5), (2, 5), (3, 5), (4, 6), (5, 4))]
    async with world.new_work() as work:
        for row in rows:
            await work[HeartbeatRow].add(row)

    async def keys(order: str, after: Place) -> list[int]:
        async with world.new_work() as work:
            found = await work[HeartbeatRow].where(order=order, after=after)
        return [row.subject[0] for row in found]

    place = Place(5, (rows[1].subject,))
    assert await keys("at", place) == [3, 4]
    assert await keys("-at", place) == [3, 5]
    assert await keys("-at", Place(6, (bytes(32),))) == [4, 1, 2, 3, 5]


async def test_rows__taken_key_or_unique__is_a_conflict_and_rolls_back(world: World) -> None:
    async with world.new_work() as work:
        await work[CursorRow].add(cursor(1))
    with pytest.raises(Conflict):
        async with world.new_work() as work:
            await work[CursorRow].add(cursor(2))
            await work[CursorRow].add(cursor(1))
    first, other = (Address(bytes([each]) * 20) for each in (1, 2))
    key = SessionKey(bytes(32))
    with pytest.raises(Conflict):
        async with world.new_work() as work:
            await work[AuditorRow].add(AuditorRow(first, key, "cpu", UnixMillis(1), b""))
            await work[AuditorRow].add(AuditorRow(other, key, "cpu", UnixMillis(1), b""))
    async with world.new_work() as work:
        assert [row.block for row in await work[CursorRow].where()] == [1]
        assert await work[AuditorRow].where() == []


async def test_work__entered_inside_itself__is_one_transaction(world: World) -> None:
    work = world.new_work()
    with pytest.raises(RuntimeError):
        async with work:
            async with work:
                await work[CursorRow].add(cursor(1))
            raise RuntimeError

    async with work:
        assert await work[CursorRow].where() == []


async def test_work__rows_outside_of_a_transaction__is_a_bug_of_ours(world: World) -> None:
    with pytest.raises(InvariantBroken):
        world.new_work()[CursorRow]


async def test_postgres__row_that_another_holds__is_skipped_or_waited_for(
    world: World,
) -> None:
    new_work = world.new_work
    async with new_work() as work:
        await work[CursorRow].add(cursor(1))
        await work[CursorRow].add(cursor(2))

    async def wait_for_it() -> CursorRow | None:
        async with new_work() as work:
            return await work[CursorRow].lock(1)

    async with new_work() as first:
        await first[CursorRow].lock(1)
        async with new_work() as second:
            free = await second[CursorRow].where(lock=True)
        waiting = asyncio.create_task(wait_for_it())
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        await first[CursorRow].put(cursor(1, hash=OTHER))
    seen = await waiting

    assert [row.block for row in free] == [2]
    assert not done
    assert seen == cursor(1, hash=OTHER)


async def test_locks__held_by_another__are_not_given_and_waited_for(
    engines: tuple[AsyncEngine, AsyncEngine],
) -> None:
    locks, order = PostgresLocks(engines[0]), list[str]()

    async def wait_for_it() -> None:
        async with locks.hold("a"):
            order.append("second")

    async with locks.hold("a"):
        async with locks.try_hold("a") as is_free, locks.try_hold("b") as is_other_free:
            waiting = asyncio.create_task(wait_for_it())
            await asyncio.wait([waiting], timeout=0.2)
        order.append("first")
    await waiting
    async with locks.try_hold("a") as is_free_again:
        pass

    assert (is_free, is_other_free, is_free_again) == (False, True, True)
    assert order == ["first", "second"]


# ------------------------------------------------------------------------------------- migrations


def test_migrate__twice__adds_up_to_the_rows(postgres: PostgresServer) -> None:
    url = postgres.new_database()

    assert migrate(url) == migrate(url) == "0001"

    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("variables", "code"),
    [({}, 2), ({"TALLYSTICK_DATABASE_URL": "postgresql://nobody:secret@127.0.0.1:1/x"}, 8)],
)
def test_migrate__no_database__is_one_line_and_a_code(
    variables: dict[str, str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TALLYSTICK_DATABASE_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert main() == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and "secret" not in said.err


# ---------------------------------------------------------------------------------------- wake-ups


async def test_wakeup__over_redis__is_heard(redis_url: str) -> None:
    wakeup = RedisWakeup(redis_url)
    topics = wakeup.listen()
    async with asyncio.timeout(patience(5)):
        assert await anext(topics) == ""  # the listening has begun
        await wakeup.wake(["jobs", "others"])
        assert [await anext(topics), await anext(topics)] == ["jobs", "others"]
    await wakeup.close()


async def test_wakeup__no_redis__neither_raises_nor_blocks() -> None:
    wakeup = RedisWakeup("redis://127.0.0.1:1/0")
    async with asyncio.timeout(patience(5)):
        await wakeup.wake(["jobs"])
        with pytest.raises(ServiceUnreachable):
            await anext(wakeup.listen())
    await wakeup.close()


# ----------------------------------------------------------------------------------- transactions


@pytest.fixture(params=["sqlite", "rows"])
def store(request: pytest.FixtureRequest) -> TransactionStore:
    """A store of signed transactions, once in SQLite and once in the market's rows."""
    if request.param == "sqlite":
        return SqliteTransactions(":memory:")
    world = request.getfixturevalue("world")
    return RowTransactions(world.new_work)


def signed(nonce: int, key: str, attempt: int = 0) -> StoredTransaction:
    return StoredTransaction(ACCOUNT, nonce, key, Digest(bytes([nonce]) * 32), b"raw", attempt)


async def test_transactions__stored__are_found_by_intention_and_nonce(
    store: TransactionStore,
) -> None:
    assert await store.next_nonce(ACCOUNT) == 0
    for nonce, key in enumerate(("a", "b", "c")):
        await store.add(signed(nonce, key))

    with pytest.raises(Conflict):
        await store.add(signed(1, "d"))
    assert await store.find(ACCOUNT, "b") == signed(1, "b")
    assert await store.find(ACCOUNT, "d") is None
    assert await store.since(ACCOUNT, 1) == [signed(1, "b"), signed(2, "c")]
    assert await store.next_nonce(ACCOUNT) == 3


async def test_transactions__replaced__newest_attempt_is_found_and_all_fail_together(
    store: TransactionStore,
) -> None:
    for each in (signed(0, "a"), signed(1, "b"), signed(0, "a", 1), signed(0, "a", 2)):
        await store.add(each)

    with pytest.raises(Conflict):
        await store.add(signed(0, "a", 1))
    attempts = await store.attempts(ACCOUNT, 0)
    assert attempts == [signed(0, "a"), signed(0, "a", 1), signed(0, "a", 2)]
    assert await store.find(ACCOUNT, "a") == signed(0, "a", 2)
    assert await store.since(ACCOUNT, 0) == [*attempts, signed(1, "b")]
    assert await store.next_nonce(ACCOUNT) == 2
    await store.mark_failed(signed(0, "a", 1))
    assert await store.find(ACCOUNT, "a") is None
    assert await store.find(ACCOUNT, "b") == signed(1, "b")


async def test_transactions__failed__intention_may_be_tried_again(
    store: TransactionStore,
) -> None:
    await store.add(signed(0, "a"))

    await store.mark_failed(signed(0, "a"))
    assert await store.find(ACCOUNT, "a") is None
    await store.add(signed(1, "a"))

    assert await store.find(ACCOUNT, "a") == signed(1, "a")
    assert await store.next_nonce(ACCOUNT) == 2
