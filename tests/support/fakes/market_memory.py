"""Ports without any service: blobs, bundles, wake-ups and rates in this process's memory.

For tests. The chain's twin is in `memory_chain`; rows have none, as a Postgres starts in a second.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, NotFound, TooLarge, WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.domain.limits import Allowance, Rate, take
from market.service.convictions import BundleSays

MAX_BUCKETS = 10_000  # before those that are full again are forgotten


class MemoryWakeup:
    """`Wakeup` among tasks of one loop."""

    def __init__(self) -> None:
        self._listening: set[asyncio.Queue[str]] = set()

    async def wake(self, topics: Iterable[str]) -> None:
        """See `Wakeup.wake`."""
        for topic in topics:
            for queue in self._listening:
                queue.put_nowait(topic)

    async def listen(self) -> AsyncIterator[str]:
        """See `Wakeup.listen`."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listening.add(queue)
        try:
            yield ""
            while True:
                yield await queue.get()
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


class NoLocks:
    """`Locks` of a process that is alone."""

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """See `Locks.hold`."""
        yield

    @asynccontextmanager
    async def try_hold(self, name: str) -> AsyncIterator[bool]:
        """See `Locks.try_hold`."""
        yield True


class MemoryBlobs:
    """`BlobStore` in a dictionary."""

    def __init__(self) -> None:
        self.blobs: dict[Digest, bytes] = {}
        self.free: int | None = None
        self.stored_at: dict[Digest, UnixMillis] = {}  # as a test says; else just now
        self.now: Callable[[], UnixMillis] = lambda: UnixMillis(time.time_ns() // 10**6)

    async def prepare(self, *, older_than_seconds: float) -> None:
        """See `BlobStore.prepare`."""

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
        self.blobs[name], self.stored_at[name] = data, self.now()
        return len(data)

    async def size(self, name: Digest) -> int | None:
        """See `BlobStore.size`."""
        return len(self.blobs[name]) if name in self.blobs else None

    async def free_bytes(self) -> int | None:
        """See `BlobStore.free_bytes`."""
        return self.free

    async def read(
        self, name: Digest, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        if name not in self.blobs:
            raise NotFound("no such blob", digest=name.hex())
        yield self.blobs[name][start:end]

    async def names(self, after: Digest) -> AsyncIterator[tuple[Digest, UnixMillis]]:
        """See `BlobStore.names`."""
        for name in sorted(name for name in self.blobs if name > after):
            yield name, self.stored_at.get(name, self.now())

    async def remove(self, name: Digest) -> None:
        """See `BlobStore.remove`."""
        self.blobs.pop(name, None)


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
