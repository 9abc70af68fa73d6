"""Who watches a feed gets each of its events once and in order, and never holds up anybody.

All watchers of a feed share one reader: it looks when it is woken, and each `POLL_SECONDS` whether
it was or not, since a wake-up may be lost; each `DEAF_SECONDS` while nothing can be heard. What it
finds is put into a bounded queue for each watcher; one whose queue is full is dropped. Whoever
comes reads what was before from the rows, after the reader has noted where it stands, so nothing is
between the two. A watcher goes on anywhere else, after a restart too, by the number that it saw
last.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from contracts.terms.errors import Overloaded, Unavailable
from contracts.terms.moments import UnixMillis
from market.api.arrivals import DEAF_SECONDS, Arrivals
from market.bodies.events import HEARTBEAT_SECONDS
from market.bodies.market import FeedStatusView
from market.bootstrap import wall_clock
from market.service.feeds import PAGE, TOPIC, newest_event, read_feed, topic_of
from market.service.ports import UnitOfWork, Wakeup
from market.service.rows import EventRow

POLL_SECONDS = 5.0
NUM_LAGS = 100
"""Live events by which the lag of feeds is told."""
log = logging.getLogger(__name__)

NewWork = Callable[[], UnitOfWork]
Clock = Callable[[], UnixMillis]


@dataclass(frozen=True)
class Limits:
    """What watching may cost."""

    streams: int = 1000
    """Open at once, in this process."""
    streams_of_client: int = 128
    """Open at once, of one client's address."""
    waiting: int = 2000
    """Events that wait for one watcher."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """Pause after which a stream without events says that it is alive."""


class _Watcher:
    """What one watcher has not taken yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[EventRow] = []
        self._news = asyncio.Event()
        self._end: Overloaded | None = None

    def give(self, rows: Sequence[EventRow]) -> None:
        """Hand over events; too many at once are the end."""
        self._waiting += rows
        if len(self._waiting) > self._most:
            self.drop("too slow: come again with Last-Event-ID")
        self._news.set()

    def drop(self, why: str) -> None:
        """Let it end, for this reason."""
        self._waiting, self._end = [], Overloaded(why)
        self._news.set()

    async def take(self, seconds: float) -> list[EventRow]:
        """All that waits, or nothing once the time is over.

        Raises:
            Overloaded: it was dropped.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        if self._end is not None:
            raise self._end
        taken, self._waiting = self._waiting, []
        return taken


class _Reader:
    """The one who reads a feed, for all who watch it."""

    def __init__(
        self,
        feed: bytes,
        new_work: NewWork,
        arrivals: Arrivals,
        note: Callable[[Sequence[EventRow]], None],
    ) -> None:
        self.watchers: set[_Watcher] = set()
        self.stands = asyncio.Event()  # whether its place is known
        self._feed, self._new_work, self._note = feed, new_work, note
        self._arrivals = arrivals
        self._stopped = False

    async def run(self) -> None:
        """Read until it is stopped. Whoever watches then is dropped with it."""
        try:
            with self._arrivals.of(topic_of(self._feed)) as woken:
                await self._read(woken)
        finally:
            self.stands.set()
            for watcher in self.watchers:
                watcher.drop("reading ended: come again with Last-Event-ID")

    async def _read(self, woken: asyncio.Event) -> None:
        place: int | None = None
        while not self._stopped:
            try:
                place = await self._start() if place is None else await self._go_on(place)
            except Unavailable as error:
                log.warning("feed %s waits: %s", topic_of(self._feed), error.message)
            pause = POLL_SECONDS if self._arrivals.hears else DEAF_SECONDS
            await self._arrivals.wait(woken, pause)

    def stop(self) -> None:
        """Let it end by itself: a query that is cancelled costs its connection."""
        self._stopped = True
        self._arrivals.wake(topic_of(self._feed))

    async def _start(self) -> int:
        async with self._new_work() as work:
            newest = await newest_event(self._feed, work)
        self.stands.set()
        return newest.sequence if newest else 0

    async def _go_on(self, place: int) -> int:
        async for rows in pages(self._feed, self._new_work, after=place):
            place = rows[-1].sequence
            for watcher in self.watchers:
                watcher.give(rows)
            self._note(rows)
        return place


async def pages(
    feed: bytes, new_work: NewWork, *, after: int, size: int = PAGE
) -> AsyncGenerator[list[EventRow], None]:
    """All events that a feed has beyond `after`, as many at once as a page holds."""
    while True:
        async with new_work() as work:
            rows = await read_feed(feed, work, after=after, limit=size)
        if rows:
            yield rows
            after = rows[-1].sequence
        if len(rows) < size:
            return


class Watching:
    """All streams of this process."""

    def __init__(
        self,
        new_work: NewWork,
        wakeup: Wakeup,
        limits: Limits | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        self.limits = limits or Limits()
        self.new_work = new_work
        self._clock = clock
        self._lags: deque[int] = deque(maxlen=NUM_LAGS)
        self._arrivals = Arrivals(wakeup, TOPIC)
        self._readers: dict[bytes, _Reader] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: Counter[str] = Counter()
        self._closed = False

    def standing(self) -> FeedStatusView:
        """How live events come through."""
        return FeedStatusView(
            streams=self._clients.total(),
            hears=self._arrivals.hears,
            lag_millis=max(self._lags, default=None),
        )

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """A place for one more stream of a client, given back at the end.

        Raises:
            Overloaded: there is none.
        """
        if self._clients[client] >= self.limits.streams_of_client:
            raise Overloaded("too many streams of this client", limit=self.limits.streams_of_client)
        if self._clients.total() >= self.limits.streams:
            raise Overloaded("too many streams", limit=self.limits.streams)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    async def events(
        self,
        feed: bytes,
        *,
        after: int,
        follow: bool = True,
        is_last: Callable[[EventRow], bool] = lambda row: False,
    ) -> AsyncGenerator[Sequence[EventRow], None]:
        """Events beyond number `after`, each once and in order; nothing at each heartbeat.

        Ends when all that there is was given, if it was told not to `follow`, or once an event was
        the last one.

        Raises:
            Overloaded: whoever takes them is too slow, or the process ends.
            ServiceUnreachable: the database does not answer.
        """
        async with self._watcher(feed) as watcher:
            is_over = not follow
            while True:
                async with aclosing(pages(feed, self.new_work, after=after)) as found:
                    async for rows in found:
                        yield rows
                        after = rows[-1].sequence
                        is_over = is_over or any(map(is_last, rows))
                if is_over:
                    return
                while not is_over:
                    rows = await watcher.take(self.limits.heartbeat_seconds)
                    fresh = [row for row in rows if row.sequence > after]
                    yield fresh
                    after = fresh[-1].sequence if fresh else after
                    is_over = any(map(is_last, fresh))  # what comes with it is read above

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        for reader in self._readers.values():
            for watcher in reader.watchers:
                watcher.drop("the market goes down: come again with Last-Event-ID")
            reader.stop()
        await self._arrivals.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @asynccontextmanager
    async def _watcher(self, feed: bytes) -> AsyncIterator[_Watcher]:
        """A watcher whose reader knows where it stands."""
        if self._closed:
            raise Overloaded("the market goes down")
        reader = self._reader(feed)
        watcher = _Watcher(self.limits.waiting)
        reader.watchers.add(watcher)
        try:
            await reader.stands.wait()
            yield watcher
        finally:
            reader.watchers.discard(watcher)
            if not reader.watchers and self._readers.get(feed) is reader:
                del self._readers[feed]
                reader.stop()

    def _reader(self, feed: bytes) -> _Reader:
        if feed not in self._readers:
            reader = self._readers[feed] = _Reader(feed, self.new_work, self._arrivals, self._note)
            task = asyncio.create_task(reader.run(), name=topic_of(feed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._readers[feed]

    def _note(self, rows: Sequence[EventRow]) -> None:
        """Remember how late events were; a coordinator's clock may be ahead of ours."""
        now = self._clock()
        self._lags += [max(0, now - row.at) for row in rows]
