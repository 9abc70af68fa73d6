"""Live events as server-sent events, and the step reports that charts begin with.

Each event has its number as `id`: `Last-Event-ID`, or `?after=`, goes on behind it, after a restart
of the market too. A comment comes every 15 seconds without events, one with the reason before a
stream that is ended, and the event `end` once a job is closed and all was sent.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Send

from contracts.terms.errors import Malformed, Unavailable
from contracts.terms.moments import UnixMillis
from market.api.context import Api, ApiDep, JobPath, WorkDep
from market.api.routing import Routes
from market.bodies.events import REPORTS_PAGE, EndEvent, ReportsView, StateEvent, read_job_event
from market.bodies.routes import GET_JOB_EVENTS, GET_MARKET_EVENTS, GET_REPORTS
from market.domain.jobs import JobState
from market.service.feeds import MARKET, newest_event
from market.service.find_job import find_job
from market.service.rows import EventRow
from market.service.show_jobs import show_reports

router = Routes(tags=["events"])

RETRY_MILLIS = 1000
SEND_SECONDS = 30.0
"""How long a client may leave what it was sent unread before its connection is closed."""
HEARTBEAT = b": heartbeat\n\n"
CLOSED = JobState.CLOSED.value
log = logging.getLogger(__name__)

AfterQuery = Annotated[int | None, Query(ge=0, le=2**53, description="Events beyond this number.")]
LastEventHeader = Annotated[
    str,
    Header(alias="Last-Event-ID", max_length=64, description="what a browser that comes again has"),
]
FollowQuery = Annotated[
    bool, Query(description="false: end as soon as everything that there is was sent.")
]


class EventStream(StreamingResponse):
    """A stream that closes what feeds it, and ends when its client reads nothing.

    FastAPI's own `EventSourceResponse` waits for a client that reads nothing for ever.
    """

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        """Send all of it."""

        async def in_time(message: Any) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        source = self.body_iterator
        assert isinstance(source, AsyncGenerator)
        async with aclosing(source):
            try:
                await super().stream_response(in_time)
            except TimeoutError:
                log.info("a reader of live events took nothing for %d s", SEND_SECONDS)


def _place(request: Request, api: ApiDep) -> Iterator[None]:
    """Hold a place among the streams until this one ends."""
    client = request.client.host if request.client else ""
    with api.watching.place(client):
        yield


@router.on(GET_JOB_EVENTS, dependencies=[Depends(_place)])
async def get_job_events(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: AfterQuery = None,
    follow: FollowQuery = True,
    last_event_id: LastEventHeader = "",
) -> Response:
    """What happens to a job, from its beginning or behind a number."""
    async with work:
        is_over = (await find_job(job, work)).state == CLOSED
    start = _start(after, last_event_id) or 0
    found = api.watching.events(job, after=start, follow=follow and not is_over, is_last=_is_close)
    return _stream(found, start, api, ends=job if follow or is_over else None)


@router.on(GET_MARKET_EVENTS, dependencies=[Depends(_place)])
async def get_market_events(
    api: ApiDep,
    work: WorkDep,
    after: AfterQuery = None,
    follow: FollowQuery = True,
    last_event_id: LastEventHeader = "",
) -> Response:
    """Clearing rounds, jobs and offers, from now on or behind a number."""
    start = _start(after, last_event_id)
    if start is None:
        async with work:
            newest = await newest_event(MARKET, work)
        start = newest.sequence if newest else 0
    return _stream(api.watching.events(MARKET, after=start, follow=follow), start, api)


@router.on(GET_REPORTS)
async def get_reports(
    job: JobPath,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**53, description="Steps beyond this one.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=REPORTS_PAGE, description="reports at most")
    ] = REPORTS_PAGE,
) -> ReportsView:
    """How the steps of a job went, for charts."""
    return await show_reports(job, work, after=after, limit=limit)


def _start(after: int | None, last_event_id: str) -> int | None:
    """Where to go on: a browser that comes again repeats its address, and adds what it saw last.

    Raises:
        Malformed: `Last-Event-ID` is no number of an event.
    """
    if not last_event_id:
        return after
    if not last_event_id.isascii() or not last_event_id.isdecimal() or len(last_event_id) > 15:
        raise Malformed("Last-Event-ID: the number of an event")
    return int(last_event_id)


def _is_close(row: EventRow) -> bool:
    if row.kind != "state":
        return False
    event = read_job_event(row.data)
    return isinstance(event, StateEvent) and event.state == CLOSED


Found = AsyncGenerator[Sequence[EventRow], None]


def _stream(found: Found, after: int, api: Api, *, ends: bytes | None = None) -> EventStream:
    """Events `found` beyond a number, and that there are no more of the job `ends`."""
    # A proxy that buffers or stores would show nothing before the end.
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return EventStream(_lines(found, after, api, ends), headers=headers)


async def _lines(
    found: Found, place: int, api: Api, ends: bytes | None
) -> AsyncGenerator[bytes, None]:
    yield format_sse_event(comment=f"events beyond {place}", retry=RETRY_MILLIS)
    try:
        async with aclosing(found):
            async for rows in found:
                yield b"".join(map(_wire, rows)) or HEARTBEAT
                place = rows[-1].sequence if rows else place
        if ends is not None:
            yield await _end(ends, place, api)
    except Unavailable as error:
        yield format_sse_event(comment=error.message)


def _wire(row: EventRow) -> bytes:
    return format_sse_event(data_str=row.data.decode(), event=row.kind, id=str(row.sequence))


async def _end(feed: bytes, place: int, api: Api) -> bytes:
    async with api.market.new_reading() as work:
        newest = await newest_event(feed, work)
    event = EndEvent(at=UnixMillis(0) if newest is None else newest.at)
    return format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=str(place))
