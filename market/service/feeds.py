"""Live events: which feeds there are, and how an event gets into one.

An event is a row, written by the use case that makes it and in the same transaction: it is there
exactly if what it tells of is, and it has the time of that, whoever looks and whenever. A feed is a
job's (its id), or the market's. Numbers are dense and grow in the order in which transactions end
(`UnitOfWork.tell`), so the last number that a reader saw is all that it needs to go on: nothing
comes later with a smaller one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from contracts.terms.ids import JobId
from market.bodies.base import Body
from market.bodies.events import JobEvent, MarketEvent
from market.service.ports import UnitOfWork
from market.service.rows import EventRow, FeedRow

E = TypeVar("E", bound=Body)

MARKET = b"market"
PAGE = 500


def topic_of(feed: bytes) -> str:
    """What readers of a feed are woken by."""
    return f"events:{feed.hex()}"


def numbered(told: Sequence[EventRow], length: int) -> list[EventRow]:
    """The events of one feed with their numbers, when they make it `length` long."""
    first = length - len(told) + 1
    return [replace(row, sequence=first + index) for index, row in enumerate(told)]


def event_of(cls: type[E], source: object, **others: Any) -> E:
    """An event of `others`, and of the attributes of `source` that are called as its fields are."""
    return cls.of(source, kind=cls.model_fields["kind"].default, **others)


def tell_job(job: JobId, event: JobEvent, work: UnitOfWork) -> None:
    """Tell who watches a job; the caller is in the transaction of what happened."""
    work.tell(job, event.kind, event.at, event.json_bytes())


def tell_market(event: MarketEvent, work: UnitOfWork) -> None:
    """Tell who watches the market; the caller is in the transaction of what happened."""
    work.tell(MARKET, event.kind, event.at, event.json_bytes())


async def read_feed(
    feed: bytes, work: UnitOfWork, *, after: int, limit: int = PAGE
) -> list[EventRow]:
    """Events beyond number `after`, at most `limit`. The caller is in a transaction."""
    return await work[EventRow].where(feed=feed, order="sequence", after=after, limit=limit)


async def newest_events(
    feed: bytes, work: UnitOfWork, *, limit: int, kinds: tuple[str, ...] = ()
) -> list[EventRow]:
    """The last events of a feed, of some kinds or of all, newest first; as `read_feed`."""
    of: dict[str, Any] = {"kind": kinds} if kinds else {}
    return await work[EventRow].where(feed=feed, order="-sequence", limit=limit, **of)


async def newest_event(feed: bytes, work: UnitOfWork) -> EventRow | None:
    """The last event of a feed. The caller is in a transaction."""
    found = await work[FeedRow].get(feed)
    return None if found is None else await work[EventRow].get(feed, found.length)
