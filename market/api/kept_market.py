"""The view of the market, made once for all who ask: again when an event of it made it old.

Every change of offers, jobs and rounds is an event of the market's feed in the same transaction, so
the feed's length names a state; heartbeats are no events, so a view is not shown for longer than a
second. A market of many offers takes long to look at, and everybody may ask: its view is made anew
at most once a second and in at most a quarter of the time. Who asks meanwhile is shown the last
one, with the moment (`clock`) of which it is; when nobody has asked for twice that pause, the next
asker waits for a new one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from contracts.terms.moments import UnixMillis
from market.service.feeds import MARKET
from market.service.ports import UnitOfWork
from market.service.rows import FeedRow
from market.service.show_market import ShownMarket

LASTS_MILLIS = 1000
MANY_OFFERS = 1000
REST_SECONDS, REST_TIMES = 1.0, 3.0
"""Between two views of many offers: a second, or three times what the last one took."""


@dataclass(frozen=True)
class Kept:
    """A view, and of which state it is."""

    view: ShownMarket
    length: int  # of the market's feed, before the view was made
    rests_until: float  # monotonic
    shown_until: float  # while the next one is made


@dataclass
class KeptMarket:
    """The newest view. Who is cancelled while it is made leaves it to the others."""

    make: Callable[[UnixMillis, UnitOfWork], Awaitable[ShownMarket]]
    new_work: Callable[[], UnitOfWork]
    clock: Callable[[], UnixMillis]
    monotonic: Callable[[], float] = time.monotonic
    _kept: Kept | None = None
    _making: "asyncio.Task[Kept] | None" = field(default=None)

    async def newest(self) -> ShownMarket:
        """The view as it is now, or, of many offers, as it was a moment ago."""
        kept = self._kept
        if kept is not None and self.monotonic() < kept.rests_until:
            return kept.view
        if kept is not None and await self._is_current(kept):
            return kept.view
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="market view")
            self._making.add_done_callback(self._made)
        if kept is not None and self.monotonic() < kept.shown_until:
            return kept.view
        return (await asyncio.shield(self._making)).view

    async def _is_current(self, kept: Kept) -> bool:
        if self.clock() - kept.view.clock >= LASTS_MILLIS:
            return False
        return await self._length(self.new_work()) == kept.length

    async def _length(self, work: UnitOfWork) -> int:
        async with work:
            feed = await work[FeedRow].get(MARKET)
        return feed.length if feed else 0

    async def _make(self) -> Kept:
        begun, work = self.monotonic(), self.new_work()
        length = await self._length(work)
        view = await self.make(self.clock(), work)
        ended = self.monotonic()
        rest = (
            max(REST_SECONDS, REST_TIMES * (ended - begun))
            if view.num_offers >= MANY_OFFERS
            else 0.0
        )
        return Kept(view, length, ended + rest, ended + 2 * rest)

    def _made(self, task: "asyncio.Task[Kept]") -> None:
        self._making = None
        if not task.cancelled() and task.exception() is None:
            self._kept = task.result()
