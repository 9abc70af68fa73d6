"""How often the market's view is made, however many ask for it."""

import asyncio
from typing import cast

from contracts.terms.moments import UnixMillis
from market.api.kept_market import MANY_OFFERS, KeptMarket
from market.bodies.market import ClassView, MarketView
from market.service.ports import UnitOfWork
from market.service.rows import FeedRow
from market.service.show_market import ShownMarket


class Feed:
    """A unit of work that knows how long the market's feed is."""

    length = 0

    async def __aenter__(self) -> "Feed":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def __getitem__(self, cls: type[FeedRow]) -> "Feed":
        return self

    async def get(self, feed: bytes) -> FeedRow:
        """See `Rows.get`."""
        return FeedRow(feed, self.length)


class Looks:
    """A market of some offers; counts who looks at all of them."""

    def __init__(self, num_offers: int) -> None:
        self.num_offers, self.made = num_offers, 0
        self.now, self.seconds = 1_000_000, 0.0
        self.feed = Feed()
        self.kept = KeptMarket(
            self.make,
            lambda: cast(UnitOfWork, self.feed),
            lambda: UnixMillis(self.now),
            lambda: self.seconds,
        )

    async def make(self, now: UnixMillis, work: UnitOfWork) -> ShownMarket:
        """The view, as `shown_market` makes it."""
        self.made += 1
        await asyncio.sleep(0)
        of_class = ClassView(
            device_class="cpu",
            offers=self.num_offers,
            leased=0,
            open=0,
            quartiles=(),
            levels=(),
            cleared=None,
            spread=None,
        )
        view = MarketView(clock=now, num_classes=1, classes=(of_class,), demand=())
        return ShownMarket(view, b"")

    def change(self) -> None:
        """Something happens."""
        self.feed.length += 1


async def test_newest__nothing_happened__is_made_once_a_second() -> None:
    looks = Looks(3)

    for _ in range(10):
        await looks.kept.newest()
        looks.now += 500

    assert looks.made == 5


async def test_newest__an_event_of_the_market__is_made_anew() -> None:
    looks = Looks(3)
    await looks.kept.newest()

    looks.change()
    looks.now += 1
    found = await looks.kept.newest()

    assert looks.made == 2 and found.clock == looks.now


async def test_newest__many_offers_that_change__last_view_is_shown_while_it_is_made() -> None:
    looks = Looks(MANY_OFFERS)
    first = await looks.kept.newest()
    looks.change()

    at_once = [await looks.kept.newest() for _ in range(20)]
    looks.seconds += 1.5
    meanwhile = await looks.kept.newest()
    while looks.made < 2:
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    after = await looks.kept.newest()

    assert all(each is first for each in [*at_once, meanwhile])
    assert after is not first and looks.made == 2


async def test_newest__many_offers_and_nobody_asked_for_long__first_asker_waits_for_it() -> None:
    looks = Looks(MANY_OFFERS)
    await looks.kept.newest()

    looks.seconds, looks.now = 3600.0, looks.now + 3_600_000
    found = await looks.kept.newest()

    assert found.clock == looks.now and looks.made == 2


async def test_newest__asker_is_cancelled__others_get_it() -> None:
    looks = Looks(3)
    leaving = asyncio.create_task(looks.kept.newest())
    staying = asyncio.create_task(looks.kept.newest())
    await asyncio.sleep(0)

    leaving.cancel()

    assert (await staying).num_offers == 3 and looks.made == 1
