"""A coordinator whose messages the market refuses: its host says so and does not run it again."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import HostedJob, HostedJobs, HostHeartbeat, HostRegistered
from market.bodies.routes import POST_HOST, POST_HOST_HEARTBEAT, Route
from tallystick.host.folder import WishFile
from tallystick.host.host import WAIT_SECONDS, Host
from tallystick.host.settings import HostSettings
from tallystick.sdk.client import MarketClient
from tests.support.history import DOMAIN, make_spec, make_wallet

JOB = JobId(bytes(range(32)))
SPEC = make_wallet("poster").sign(make_spec(), DOMAIN)


@dataclass
class FakeMarket:
    """Leases one job to the host, and keeps what it says."""

    wish: int = 0
    is_hosted: bool = True
    url: str = "http://market"
    beats: list[HostHeartbeat] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)  # seconds that it was allowed to take

    async def call(self, route: Route[Any], body: Any = None, *, wait: int = 0) -> Any:
        """See `MarketClient.call`."""
        if route is POST_HOST:
            return HostRegistered(coordinators=10)
        if route is POST_HOST_HEARTBEAT:
            self.beats.append(body)
            return HostedJobs(jobs=())
        self.waits.append(wait)
        held = HostedJob(
            job=JOB,
            state="running",
            spec=SPEC.encoded(),
            until=UnixMillis(0),
            wish=self.wish,
        )
        return HostedJobs(jobs=(held,) if self.is_hosted else ())


class Ended:
    """A process that has ended with its work done; so it says."""

    exit_status = 0

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.ended.set()


def host_of(market: FakeMarket, folder: Path, run: Callable[[str], Any]) -> Host:
    """A host whose coordinators are what `run` answers, or else have ended."""

    def start(argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path) -> Any:
        if argv[2] == "tallystick.coordinator":
            return run(argv[3]) or Ended()
        return Ended()

    return Host(
        client=cast(MarketClient, market),
        settings=HostSettings(keys=folder / "keys", jobs=folder / "jobs", api_url=market.url),
        environment={},
        say=lambda line: None,
        start=start,
    )


async def beat(host: Host) -> None:
    """One round, and whatever it started has come to its end."""
    await host._beat()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*host._running.values())


async def test_host__has_a_job_or_none__the_market_may_wait_only_if_it_has_none(
    tmp_path: Path,
) -> None:
    market = FakeMarket(is_hosted=False)
    host = host_of(market, tmp_path, lambda folder: None)

    await host._beat()
    host._running[JOB] = asyncio.create_task(asyncio.sleep(0))
    await host._beat()

    assert market.waits == [WAIT_SECONDS, 0]


async def test_host__market_refuses_the_messages__says_why_and_waits_for_the_poster(
    tmp_path: Path,
) -> None:
    market, runs = FakeMarket(), list[str]()

    def refused(folder: str) -> None:
        runs.append(folder)
        WishFile(Path(folder)).stands_still("equivocation: two values of one work_claim.v1")

    host = host_of(market, tmp_path, refused)
    for _ in range(3):
        await beat(host)
    assert len(runs) == 1
    (said,) = market.beats[-1].standing
    assert (said.job, said.why) == (JOB, "equivocation: two values of one work_claim.v1")

    market.wish = 1
    await beat(host)
    await beat(host)

    assert len(runs) == 2


async def test_host__job_that_runs_stands_still__says_why_until_it_goes_on(tmp_path: Path) -> None:
    market, process, wishes = FakeMarket(), Ended(), list[WishFile]()
    process.ended.clear()

    def running(folder: str) -> Ended:
        wishes.append(WishFile(Path(folder)))
        return process

    host = host_of(market, tmp_path, running)
    await host._beat()
    await asyncio.sleep(0)  # it is started in a task
    for why in ("nobody has it", ""):
        wishes[0].stands_still(why)
        await host._beat()
    process.ended.set()
    await asyncio.gather(*host._running.values())

    said = [[each.why for each in told.standing] for told in market.beats]
    assert said[-2:] == [["nobody has it"], []]
    assert {told.jobs for told in market.beats} == {(JOB,)}
    assert len(wishes) == 1


async def test_host__job_was_taken_away_and_comes_back__is_run_again(tmp_path: Path) -> None:
    market, runs = FakeMarket(), list[str]()

    def refused(folder: str) -> None:
        runs.append(folder)
        WishFile(Path(folder)).stands_still("conflict: a")

    host = host_of(market, tmp_path, refused)
    for is_hosted in (True, True, False, True):
        market.is_hosted = is_hosted
        await beat(host)

    assert len(runs) == 2
