"""Live events: each reaches who watches once and in order, whatever ends in between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from contracts.governance.job import follow
from contracts.terms.errors import Malformed, NotFound, Overloaded
from contracts.terms.escrow_messages import Close
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.adapters.postgres import PostgresWork
from market.adapters.redis_wakeup import RedisWakeup
from market.api.arrivals import Arrivals
from market.api.watching import Limits, Watching
from market.bodies.events import (
    JobChangedEvent,
    JobEvent,
    OfferEvent,
    ReportedEvent,
    RoundEvent,
    read_job_event,
)
from market.bodies.jobs import PostReports, StepReport
from market.bodies.routes import GET_REPORTS, POST_REPORTS
from market.bodies.signing import reports_digest
from market.service.feeds import MARKET, PAGE, tell_job
from market.service.histories import Histories
from market.service.message_events import events_of
from market.service.orders import take_order
from market.service.ports import UnitOfWork
from market.service.rows import EventRow, FeedRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import client_of
from tests.integration.market.test_checks import Checked, checked
from tests.support.history import JobMaker, make_wallet
from tests.support.market_services import run_redis
from tests.support.market_world import World
from tests.support.patience import patience
from tests.support.serving import served

JOB = JobId(bytes(range(32)))


@pytest.fixture
async def world(
    database: str, engines: tuple[AsyncEngine, AsyncEngine], redis_url: str
) -> AsyncIterator[World]:
    """A market over Postgres and Redis."""
    writing, reading = engines
    wakeup = RedisWakeup(redis_url)
    yield World(lambda: PostgresWork(writing, wakeup), lambda: PostgresWork(reading), wakeup=wakeup)
    await wakeup.close()
    await writing.dispose()
    await reading.dispose()


def said(step: int) -> ReportedEvent:
    """An event that tells itself apart from others."""
    return ReportedEvent(at=UnixMillis(step), step=step, loss_millionths=step, tokens_per_second=1)


async def tell(world: World, *steps: int) -> None:
    """Events of JOB, in one transaction."""
    async with world.new_work() as work:
        for step in steps:
            tell_job(JOB, said(step), work)


async def rows_of(world: World, feed: bytes) -> list[EventRow]:
    return await world.rows(EventRow, feed=feed, order="sequence")


async def known_job(world: World) -> JobMaker:
    """A job that runs, with one step."""
    maker = await world.start_job()
    await world.seal(maker)
    return maker


async def end(world: World, maker: JobMaker) -> None:
    """The last step, and all that follows from it until the poster closes the job."""
    job = maker.spec.job()
    await world.seal(maker, last=True)
    for _ in range(4):
        world.wait(6)
        await world.tick()
    close = Close(job=job, by=UnixSeconds(world.now // 1000 + 30))
    signed = make_wallet("poster").sign(close, world.domain)
    await take_order(job, signed.encoded(), world.now, world.new_work(), world.ports)
    while (await world.job(job)).state != "closed":
        world.wait(6)
        await world.tick()


# ------------------------------------------------------------------------------------------ rows


async def test_tell__transactions_that_end_and_that_do_not__leave_no_gap(world: World) -> None:
    async def one(number: int) -> None:
        try:
            async with world.new_work() as work:
                tell_job(JOB, said(number), work)
                await asyncio.sleep(0.001 * (number % 3))
                if number % 4 == 0:
                    raise Malformed("this one is rolled back")
        except Malformed:
            return

    await asyncio.gather(*(one(number) for number in range(1, 41)))

    rows = await rows_of(world, JOB)
    counted = await world.row(FeedRow, JOB)
    assert [row.sequence for row in rows] == list(range(1, 31))
    assert counted == FeedRow(JOB, 30)
    assert {row.at for row in rows} == {number for number in range(1, 41) if number % 4}


async def test_events__of_messages__are_what_the_messages_say_again(world: World) -> None:
    opened = await checked(world)
    await opened.work()
    await opened.draw(1)
    for case, _ in list(opened.docket.open.values()):
        await opened.report(case)
    await opened.work()

    again = await _told_again(opened)
    kinds = {event.kind for event in again}
    told = [read_job_event(row.data) for row in await rows_of(world, opened.job)]
    assert [replaced(event) for event in told if event.kind in kinds] == again
    assert {"sealed", "peer", "ruled", "audited"} <= kinds


async def _told_again(opened: Checked) -> list[JobEvent]:
    history = Histories(opened.world.domain).new()
    found: list[JobEvent] = []
    for item in opened.maker.items:
        after = follow(history, item)
        found += events_of(history, after, item, UnixMillis(0))
        history = after
    return found


def replaced(event: JobEvent) -> JobEvent:
    return event.model_copy(update={"at": 0})


# --------------------------------------------------------------------------------------- streams


async def test_job_events__whole_life__each_once_and_in_order(
    world: World,
) -> None:
    async with served(world.api()) as url, MarketClient(url) as client:
        maker = await known_job(world)
        job = maker.spec.job()
        watching = asyncio.create_task(_watched(client, job))
        await end(world, maker)
        async with asyncio.timeout(patience(10)):
            seen = await watching
        told = await _watched(client, job)

    rows = await rows_of(world, job)
    numbers = [number for number, event in told if event.kind != "end"]
    assert numbers == [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    assert seen == told
    kinds = [event.kind for _, event in told]
    assert kinds[0] == "posted" and kinds[-1] == "end" and kinds.count("end") == 1
    wanted = {"funded", "lease", "bond", "peer", "sealed", "anchored", "beacon"}
    assert wanted < set(kinds)


async def _watched(client: MarketClient, job: JobId) -> list[tuple[int, JobEvent]]:
    return [each async for each in client.job_events(job)]


def numbers_in(text: str) -> list[int]:
    lines = text.split("\n")
    return [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]


async def test_job_events__written_at_once_and_market_restarted__nothing_lost_or_twice(
    world: World,
) -> None:
    num_events, num_watchers = 40, 3
    await _post(world)
    seen: list[list[int]] = [[] for _ in range(num_watchers)]

    async def look(client: MarketClient, found: list[int]) -> None:
        async with aclosing(client.job_events(JOB)) as events:
            async for number, _ in events:
                found.append(number)
                if len(found) == num_events:
                    return

    async def write(worker: int) -> None:
        for number in range(num_events // 4):
            await tell(world, 1000 * worker + number + 1)
            await asyncio.sleep(0.005)

    async with asyncio.timeout(patience(60)):
        async with served(world.api()) as url:
            port = urlsplit(url).port or 0
            clients = [MarketClient(url) for _ in range(num_watchers)]
            looking = [
                asyncio.create_task(look(client, found))
                for client, found in zip(clients, seen, strict=True)
            ]
            writing = [asyncio.create_task(write(worker)) for worker in range(4)]
            while not all(seen):
                await asyncio.sleep(0.01)
        for _ in range(2):  # the first ones went away in the middle of it
            async with served(world.api(), port):
                await asyncio.sleep(0.1)
        async with served(world.api(), port):
            await asyncio.gather(*writing, *looking)
        for client in clients:
            await client.close()

    assert seen == [list(range(1, num_events + 1))] * num_watchers


async def _post(world: World) -> None:
    """A row for JOB, as if it had been posted."""
    row = await world.job((await known_job(world)).spec.job())
    async with world.new_work() as work:
        await work[type(row)].put(replace(row, job=JOB))


async def test_job_events__many_watchers__cost_no_more_looks_a_wake_than_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("market.api.watching.POLL_SECONDS", 1e6)
    num_watchers, num_events = 40, 5
    counted = Counted(world)
    watching = Watching(counted.new_work, Arrivals(world.wakeup))
    done: list[int] = []

    async def look() -> None:
        async with aclosing(watching.events(JOB, after=0)) as found:
            async for rows in found:
                done.extend(row.sequence for row in rows)

    looking = [asyncio.create_task(look()) for _ in range(num_watchers)]
    await _until(lambda: bool(watching.standing().hears))
    before = counted.begun
    for number in range(1, num_events + 1):
        async with world.new_work() as work:
            tell_job(JOB, said(number), work)
        await _until(lambda want=num_watchers * number: len(done) == want)  # type: ignore[misc]

    assert counted.begun - before < num_watchers
    await watching.close()
    ended = await asyncio.gather(*looking, return_exceptions=True)
    assert {type(each) for each in ended} == {Overloaded}


class Counted:
    """Counts the transactions of a market."""

    def __init__(self, world: World) -> None:
        self._world, self.begun = world, 0

    def new_work(self) -> UnitOfWork:
        """One more."""
        self.begun += 1
        return self._world.new_work()


async def _until(holds: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(patience(seconds)):
        while not holds():
            await asyncio.sleep(0.002)


async def test_job_events__quiet_then_many_at_once__stream_says_both(world: World) -> None:
    await _post(world)
    api = world.api()
    api.watching = Watching(world.new_work, api.arrivals, Limits(heartbeat_seconds=0.05))
    text, told = "", 0  # the newest event, which a piece of the stream may not have yet
    async with (
        served(api) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("GET", f"/v1/jobs/{JOB.hex()}/events") as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        async for piece in stream.aiter_text():
            text += piece
            if ": heartbeat" in text and not told:
                told = 1
                await tell(world, told)
            elif "id: 1\n" in text and told == 1:
                told = PAGE + 11
                await tell(world, *range(2, told + 1))  # more than one look shows
            elif f"id: {PAGE + 11}\n" in text:
                break

    assert text.startswith(": events beyond 0\nretry: 1000\n\n")
    assert numbers_in(text) == [*range(1, PAGE + 12)]


async def test_job_events__redis_dies_and_comes_back__readers_poll_meanwhile(
    engines: tuple[AsyncEngine, AsyncEngine],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("market.api.watching.POLL_SECONDS", 1e6)  # who can hear is told, or fails
    with ExitStack() as stack:
        wakeup = RedisWakeup(stack.enter_context(run_redis(tmp_path)))
        world.new_work = lambda: PostgresWork(engines[0], wakeup)
        watching = Watching(world.new_work, arrivals := Arrivals(wakeup))
        found = watching.events(JOB, after=0)
        await tell(world, 1)
        await anext(found)
        for number in range(2, 6):
            if number == 4:
                stack.close()  # Redis is gone
            await tell(world, number)
            async with asyncio.timeout(patience(10)):
                (row,) = await anext(found)
            assert row.sequence == number

    await found.aclose()
    await watching.close()
    await arrivals.close()
    await wakeup.close()


# ------------------------------------------------------------------------------- what is refused


async def test_job_events__no_such_job_or_number__is_refused(world: World) -> None:
    maker = await known_job(world)
    async with client_of(world) as client:
        unknown = await client.get(f"/jobs/{JOB.hex()}/events")
        path = f"/jobs/{maker.spec.job().hex()}/events"
        wrong = await client.get(path, headers={"Last-Event-ID": "seven"})
        negative = await client.get(f"{path}?after=-1")

    assert [each.json()["code"] for each in (unknown, wrong, negative)] == [
        NotFound.code,
        Malformed.code,
        Malformed.code,
    ]


async def test_job_events__more_streams_than_places__are_refused_until_one_ends(
    world: World,
) -> None:
    await _post(world)
    api = world.api()
    api.watching = Watching(world.new_work, api.arrivals, Limits(streams_of_client=1))
    path = f"/v1/jobs/{JOB.hex()}/events"
    async with served(api) as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("GET", path) as first:
            assert first.status_code == 200
            told = first.aiter_bytes()  # kept: without it the response would be closed at any time
            await anext(told)
            refused = await client.get(path)
        async with asyncio.timeout(patience(5)):
            while (again := await client.get(f"{path}?follow=false")).status_code != 200:
                await asyncio.sleep(0.01)

    assert (refused.status_code, refused.json()["code"]) == (503, Overloaded.code)
    assert again.status_code == 200


# ------------------------------------------------------------------------- the market, and charts


async def test_market_events__a_job_from_offer_to_its_close__are_told_from_now_on(
    world: World,
) -> None:
    api = world.api()
    async with served(api) as url, MarketClient(url) as client:
        maker = await known_job(world)
        await end(world, maker)
        length = len(await rows_of(world, MARKET))
        async with aclosing(client.market_events(after=0)) as found:
            told = [await anext(found) for _ in range(length)]

    assert [number for number, _ in told] == list(range(1, length + 1))
    states = [event.state for _, event in told if isinstance(event, JobChangedEvent)]
    assert states == ["draft", "funded", "matched", "running", "finished", "closed"]
    (round_,) = [event for _, event in told if isinstance(event, RoundEvent)]
    assert (round_.bought, round_.offers) == (1, 1) and round_.price is not None
    assert any(isinstance(event, OfferEvent) for _, event in told)


async def test_post_reports__an_earlier_one_of_a_step_again__changes_nothing(world: World) -> None:
    maker = await known_job(world)
    job, key = maker.spec.job(), maker.session.private_key
    first = StepReport(step=1, loss_millionths=5, tokens_per_second=9, at=UnixMillis(1))
    second = first.model_copy(update={"validation_millionths": 7})
    last = first.model_copy(update={"at": UnixMillis(2), "loss_millionths": 3})
    said = [
        PostReports(reports=(each,), signature=key.sign(reports_digest(job, [each])))
        for each in (first, second, last)
    ]

    shown: list[StepReport] = []
    async with served(world.api()) as url, MarketClient(url) as client:
        for number in (0, 1, 0, 2, 1, 0):  # somebody overheard them
            await client.call(POST_REPORTS, said[number], job=job)
            shown += (await client.call(GET_REPORTS, job=job)).reports

    assert shown == [first, second, second, last, last, last]
    assert [row.kind for row in await rows_of(world, job)].count("report") == 3
