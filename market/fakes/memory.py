"""The ports without any service: rows, blobs and wake-ups in this process's memory.

For tests, simulations and dry runs. Transactions come one after the other; a failed one leaves
nothing behind. The chain's twin is in `memory_chain`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from contracts.terms.digest import blob_digest
from contracts.terms.errors import (
    Conflict,
    InvariantBroken,
    Malformed,
    NotFound,
    TooLarge,
    WrongBytes,
)
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.domain.limits import Allowance, Rate, take
from market.service.evidence import BundleSays
from market.service.feeds import numbered, topic_of
from market.service.ports import Place, Rows, UnitOfWork, Wakeup
from market.service.rows import AUTOMATIC, ROWS, EventRow, FeedRow, OutboxRow, Row

R = TypeVar("R", bound=Row)

Key = tuple[object, ...]
MAX_BUCKETS = 10_000  # before those that are full again are forgotten
Tables = dict[type[Row], dict[Key, Any]]


class MemoryStore:
    """All tables."""

    def __init__(self) -> None:
        self.tables: Tables = {cls: {} for cls in ROWS}
        self.lock = asyncio.Lock()
        self.numbers = dict.fromkeys(AUTOMATIC, 0)


class MemoryRows:
    """`Rows` over a dictionary."""

    def __init__(self, cls: type[Any], store: MemoryStore, *, reads: bool = False) -> None:
        self._cls, self._store, self._reads = cls, store, reads
        self._rows = store.tables[cls]

    async def get(self, *key: object) -> Any:
        """See `Rows.get`."""
        return self._rows.get(key)

    async def lock(self, *key: object) -> Any:
        """See `Rows.lock`."""
        self._check_may_write()
        return self._rows.get(key)

    async def add(self, row: Any) -> Any:
        """See `Rows.add`."""
        self._check_may_write()
        if (name := AUTOMATIC.get(self._cls)) and not getattr(row, name):
            self._store.numbers[self._cls] += 1
            row = replace(row, **{name: self._store.numbers[self._cls]})
        if self._key(row) in self._rows:
            raise Conflict(f"{self._cls.TABLE}: pk_{self._cls.TABLE} is taken")
        await self.put(row)
        return row

    async def add_all(self, rows: Sequence[Any]) -> None:
        """See `Rows.add_all`."""
        for row in rows:
            await self.add(row)

    async def put(self, row: Any) -> None:
        """See `Rows.put`."""
        self._check_may_write()
        key = self._key(row)
        for names in self._cls.UNIQUE:
            values = [getattr(row, name) for name in names]
            if None in values:
                continue
            for other, known in self._rows.items():
                if other != key and [getattr(known, name) for name in names] == values:
                    raise Conflict(f"{self._cls.TABLE}: uq_{'_'.join(names)} is taken")
        self._rows[key] = row

    async def put_all(self, rows: Sequence[Any]) -> None:
        """See `Rows.put_all`."""
        for row in rows:
            await self.put(row)

    async def put_later(self, row: Any, column: str) -> bool:
        """See `Rows.put_later`."""
        known = self._rows.get(self._key(row))
        if known is not None and getattr(known, column) >= getattr(row, column):
            self._check_may_write()
            return False
        await self.put(row)
        return True

    async def remove(self, *key: object) -> None:
        """See `Rows.remove`."""
        self._check_may_write()
        self._rows.pop(key, None)

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
        if lock:
            self._check_may_write()
        name, descending = order.removeprefix("-"), order.startswith("-")
        found = [row for row in self._rows.values() if _matches(row, equals)]
        found.sort(key=self._key)
        if name:
            found.sort(key=lambda row: getattr(row, name), reverse=descending)
        if isinstance(after, Place):
            found = [row for row in found if self._is_behind(row, after, name, descending)]
        elif name and after is not None:
            found = [row for row in found if _beyond(getattr(row, name), after, descending)]
        return found[:limit]

    def _is_behind(self, row: Any, place: Place, name: str, descending: bool) -> bool:
        value = getattr(row, name)
        if value == place.value:
            return bool(self._key(row) > place.key)
        return _beyond(value, place.value, descending)

    async def count(self, **equals: object) -> int:
        """See `Rows.count`."""
        return sum(_matches(row, equals) for row in self._rows.values())

    def _check_may_write(self) -> None:
        if self._reads:
            raise InvariantBroken(f"{self._cls.TABLE}: a unit of work that reads does not write")

    def _key(self, row: Any) -> Any:
        return tuple(getattr(row, name) for name in self._cls.KEY)


def _matches(row: Row, equals: dict[str, object]) -> bool:
    for name, value in equals.items():
        found = getattr(row, name)
        if not (found in value if isinstance(value, tuple) else found == value):
            return False
    return True


def _beyond(value: Any, after: Any, descending: bool) -> bool:
    return bool(value < after if descending else value > after)


class MemoryWork:
    """`UnitOfWork` over a store; one that `reads` can do nothing else."""

    def __init__(
        self, store: MemoryStore, wakeup: Wakeup | None = None, *, reads: bool = False
    ) -> None:
        self._store, self._wakeup, self._reads = store, wakeup, reads
        self._before: Tables = {}
        self._depth = 0
        self._topics: list[str] = []
        self._told: list[EventRow] = []

    async def __aenter__(self) -> UnitOfWork:
        if self._depth == 0:
            await self._store.lock.acquire()
            self._before = {cls: dict(rows) for cls, rows in self._store.tables.items()}
        self._depth += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        topics, self._topics = self._topics, []
        told, self._told = self._told, []
        if error[0] is not None:
            self._store.tables = self._before
        else:
            self._append(told)
        self._store.lock.release()
        if error[0] is None and topics and self._wakeup is not None:
            await self._wakeup.wake(dict.fromkeys(topics))

    def __getitem__(self, cls: type[R]) -> Rows[R]:
        if not self._depth:
            raise InvariantBroken("rows outside of a transaction")
        return MemoryRows(cls, self._store, reads=self._reads)

    async def emit(self, topic: str, subject: bytes) -> None:
        """See `UnitOfWork.emit`."""
        await self[OutboxRow].add(OutboxRow(0, topic, subject))
        self._topics.append(topic)

    def tell(self, feed: bytes, kind: str, at: UnixMillis, data: bytes) -> None:
        """See `UnitOfWork.tell`."""
        if self._reads:
            raise InvariantBroken("a unit of work that reads tells nothing")
        self._told.append(EventRow(feed, 0, kind, at, data))
        self._topics.append(topic_of(feed))

    def _append(self, told: list[EventRow]) -> None:
        lengths, events = self._store.tables[FeedRow], self._store.tables[EventRow]
        for feed in dict.fromkeys(row.feed for row in told):
            of_feed = [row for row in told if row.feed == feed]
            before = lengths[(feed,)].length if (feed,) in lengths else 0
            lengths[(feed,)] = FeedRow(feed, before + len(of_feed))
            for row in numbered(of_feed, before + len(of_feed)):
                events[feed, row.sequence] = row


class MemoryWakeup:
    """`Wakeup` among tasks of one loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._listening: set[asyncio.Queue[str]] = set()

    async def wake(self, topics: Iterable[str]) -> None:
        """See `Wakeup.wake`."""
        for topic in topics:
            if event := self._waiting.pop(topic, None):
                event.set()
            for queue in self._listening:
                queue.put_nowait(topic)

    async def wait(self, topic: str, timeout_seconds: float) -> None:
        """See `Wakeup.wait`."""
        event = self._waiting.setdefault(topic, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), timeout_seconds)
        except TimeoutError:
            return

    async def listen(self, prefix: str) -> AsyncIterator[str]:
        """See `Wakeup.listen`."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listening.add(queue)
        try:
            yield ""
            while True:
                if (topic := await queue.get()).startswith(prefix):
                    yield topic
        finally:
            self._listening.discard(queue)


class MemoryLimiter:
    """`Limiter` of one process."""

    def __init__(self, clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000) -> None:
        self._clock = clock  # microseconds
        self._full_at: dict[str, int] = {}

    async def take(self, caller: str, rate: Rate) -> Allowance | None:
        """See `Limiter.take`."""
        now = self._clock()
        after, allowance = take(self._full_at.get(caller, 0), now, rate)
        self._full_at[caller] = after
        if len(self._full_at) > MAX_BUCKETS:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        return allowance


class MemoryBlobs:
    """`BlobStore` in a dictionary."""

    def __init__(self) -> None:
        self.blobs: dict[Digest, bytes] = {}
        self.free: int | None = None

    async def put(self, name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int) -> int:
        """See `BlobStore.put`."""
        data = b""
        async for chunk in chunks:
            data += chunk
            if len(data) > max_bytes:
                raise TooLarge(f"more than {max_bytes} bytes", limit=max_bytes)
        actual = blob_digest(data)
        if actual != name:
            raise WrongBytes("these bytes have another name", expected=name, actual=actual)
        self.blobs[name] = data
        return len(data)

    async def size(self, name: Digest) -> int | None:
        """See `BlobStore.size`."""
        return len(self.blobs[name]) if name in self.blobs else None

    async def free_bytes(self) -> int | None:
        """See `BlobStore.free_bytes`."""
        return self.free

    async def read(self, name: Digest) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        if name not in self.blobs:
            raise NotFound("no such blob", digest=name.hex())
        yield self.blobs[name]


class MemoryBundles:
    """`Bundles` as a test declares them."""

    def __init__(self, blobs: MemoryBlobs) -> None:
        self._blobs = blobs
        self.says: dict[Digest, BundleSays] = {}

    async def read(self, name: Digest) -> BundleSays:
        """See `Bundles.read`."""
        if name not in self._blobs.blobs:
            raise NotFound("no such blob", digest=name.hex())
        if name not in self.says:
            raise Malformed("no bundle of evidence")
        return self.says[name]
