"""Who watches a feed gets each of its events once and in order, and never holds up anybody.

A watcher reads the rows beyond the number that it saw last, when it is woken, and each
`POLL_SECONDS` whether it was or not, since a wake-up may be lost; each `DEAF_SECONDS` while nothing
can be heard. Watchers that stand at the same number at the same time share one query, so a thousand
of them cost no more looks than one. One that is slow reads later, and nothing waits for it here. A
watcher goes on anywhere else, after a restart too, by the number that it saw last.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from contracts.terms.errors import Overloaded, Unavailable
from contracts.terms.moments import UnixMillis
from market.api.arrivals import DEAF_SECONDS, Arrivals
from market.bodies.events import HEARTBEAT_SECONDS
from market.bodies.market import FeedStatusView
from market.bootstrap import wall_clock
from market.service.feeds import PAGE, read_feed, topic_of
from market.service.ports import UnitOfWork
from market.service.rows import EventRow

POLL_SECONDS = 5.0
NUM_LAGS = 100
"""Live events by which the lag of feeds is told."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What watching may cost."""

    streams: int = 1000
    """Open at once, in this process."""
    streams_of_client: int = 128
    """Open at once, of one client's address."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """Pause after which a stream without events says that it is alive."""


class Watching:
    """All streams of this process."""

    def __init__(
        self,
        new_work: Callable[[], UnitOfWork],
        arrivals: Arrivals,
        limits: Limits | None = None,
        clock: Callable[[], UnixMillis] = wall_clock,
    ) -> None:
        self.limits = limits or Limits()
        self._new_work, self._arrivals, self._clock = new_work, arrivals, clock
        self._lags: deque[int] = deque(maxlen=NUM_LAGS)
        self._next: dict[tuple[bytes, int, bool], asyncio.Task[list[EventRow]]] = {}
        self._tasks: set[asyncio.Task[list[EventRow]]] = set()
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
            Overloaded: the process ends.
            ServiceUnreachable: the database does not answer.
        """
        loop, is_live = asyncio.get_running_loop(), False
        with self._arrivals.of(topic_of(feed)) as woken:
            spoke_at = loop.time()
            while not self._closed:
                rows = await self._read(feed, after, is_live)
                if rows or loop.time() - spoke_at >= self.limits.heartbeat_seconds:
                    yield rows
                    spoke_at = loop.time()
                if rows:
                    after = rows[-1].sequence
                    follow = follow and not any(map(is_last, rows))
                if len(rows) == PAGE:
                    continue
                if not follow:
                    return
                is_live = True
                pause = POLL_SECONDS if self._arrivals.hears else DEAF_SECONDS
                pause = min(pause, self.limits.heartbeat_seconds)
                # All look at the same moments, so that they share a query.
                await self._arrivals.wait(woken, pause - loop.time() % pause)
        raise Overloaded("the market goes down: come again with Last-Event-ID")

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._arrivals.wake("")
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _read(self, feed: bytes, after: int, is_live: bool) -> list[EventRow]:
        """A page of rows beyond `after`; who is cancelled leaves the query to the others."""
        key = (feed, after, is_live)
        if key not in self._next:
            task = self._next[key] = asyncio.create_task(self._page(*key), name=topic_of(feed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next[key])

    async def _page(self, feed: bytes, after: int, is_live: bool) -> list[EventRow]:
        # Who comes from now on asks anew: what has woken it may be younger than this look.
        del self._next[feed, after, is_live]
        try:
            async with self._new_work() as work:
                rows = await read_feed(feed, work, after=after)
        except Unavailable as error:
            if not is_live:
                raise
            log.warning("feed %s waits: %s", topic_of(feed), error.message)
            return []
        if is_live:  # a coordinator's clock may be ahead of ours
            now = self._clock()
            self._lags += [max(0, now - row.at) for row in rows]
        return rows
