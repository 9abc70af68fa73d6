"""Who asks too often is told so and when to come back; nobody else notices."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import RateLimited, Unavailable
from market.adapters.redis_limiter import RedisLimiter
from market.api.app import make_app
from market.api.context import Api
from market.bodies.base import Problem, read_body
from market.bodies.routes import GET_JOBS
from market.domain.limits import SECOND, Rate
from market.service.ports import Limiter
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.http import signed_by
from tests.integration.market.client import HOST
from tests.support.fakes.market_memory import MemoryLimiter
from tests.support.history import DOMAIN, make_wallet
from tests.support.market_world import World
from tests.support.patience import patience

SITE = "http://127.0.0.1:8420"
SLOW = Rate(per_second=1, burst=3)


class Hourly(Rate):
    """Refills so slowly that no slow machine sees it."""

    @property
    def interval(self) -> int:
        """See `Rate.interval`."""
        return 3600 * SECOND


def limited(world: World, limiter: Limiter, rate: Rate = SLOW) -> Api:
    """An application that counts."""
    api = world.api()
    api.market = replace(api.market, limiter=limiter)
    api.rate = rate
    return api


def stopped() -> MemoryLimiter:
    """A limiter whose clock stands: nothing is refilled while a slow machine sends requests."""
    return MemoryLimiter(lambda: SECOND)


def client_from(api: Api, address: str = "192.0.2.1") -> httpx.AsyncClient:
    """A client at an address."""
    wire = httpx.ASGITransport(make_app(api), client=(address, 1))
    return httpx.AsyncClient(transport=wire, base_url=SITE + "/v1")


@pytest.fixture
async def limiter(redis_url: str) -> AsyncIterator[Limiter]:
    """A limiter in Redis."""
    found = RedisLimiter(redis_url)
    await found._redis.flushall()
    yield found
    await found.close()


# ---------------------------------------------------------------------------------------- adapters


async def test_limiter__more_than_the_burst__is_refused_and_others_are_not(
    limiter: Limiter,
) -> None:
    rate = Hourly(per_second=1, burst=5)

    found = [await limiter.take("a", rate) for _ in range(7)]
    other = await limiter.take("b", rate)

    assert all(found) and other
    admitted = [each.is_admitted for each in found if each]
    assert admitted == [True] * 5 + [False] * 2
    assert [each.remaining for each in found if each] == [4, 3, 2, 1, 0, 0, 0]
    last = found[-1]
    assert last and 0 < last.retry_in <= 3600 * SECOND
    assert other.remaining == 4


async def test_limiter__after_a_pause__admits_again(limiter: Limiter) -> None:
    rate = Rate(per_second=10, burst=1)

    assert await limiter.take("a", rate)
    async with asyncio.timeout(patience(10)):
        while not ((again := await limiter.take("a", rate)) and again.is_admitted):
            await asyncio.sleep(0.01)


async def test_limiter__fifty_at_once__admits_the_burst(limiter: Limiter) -> None:
    rate = Hourly(per_second=1, burst=20)

    found = await asyncio.gather(*(limiter.take("a", rate) for _ in range(50)))

    assert sum(each.is_admitted for each in found if each) == 20


async def test_limiter__no_redis__counts_nobody_and_costs_one_attempt_a_second() -> None:
    limiter = RedisLimiter("redis://127.0.0.1:1/0")

    async with asyncio.timeout(patience(2)):
        found = [await limiter.take("a", SLOW) for _ in range(100)]
    await limiter.close()

    assert found == [None] * 100


# --------------------------------------------------------------------------------------------- API


async def test_api__too_many_requests__is_a_problem_that_says_when(world: World) -> None:
    api = limited(world, stopped())

    async with client_from(api) as client:
        seen = [await client.get("/jobs") for _ in range(4)]

    assert [each.status_code for each in seen] == [200, 200, 200, 429]
    assert [each.headers["ratelimit-remaining"] for each in seen] == ["2", "1", "0", "0"]
    assert {each.headers["ratelimit-limit"] for each in seen} == {"3"}
    assert seen[-1].headers["ratelimit-reset"] == "3"
    assert seen[-1].headers["retry-after"] == "1"
    assert seen[-1].headers["content-type"] == "application/problem+json"
    problem = read_body(Problem, seen[-1].content)
    assert (problem.code, problem.data) == ("rate_limited", {"retry_after": 1})


async def test_api__addresses_of_one_ipv6_network__are_one_caller(world: World) -> None:
    api = limited(world, stopped())

    codes = []
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8:1::1"):
        async with client_from(api, host) as client:
            codes.append((await client.get("/jobs")).status_code)

    assert codes == [200, 200, 200, 429, 200]


async def test_api__signed_by_a_new_wallet_each_time__is_counted_by_the_address(
    world: World,
) -> None:
    api = limited(world, stopped())
    codes = []

    async with client_from(api) as client:
        for name in ("ann", "bob", "cem", "dan"):
            by, none = make_wallet(name), blob_digest(b"")
            signed = signed_by(by, DOMAIN, "GET", "/v1/jobs", none, world.now)
            answer = await client.get("/jobs", headers={"Authorization": signed})
            codes.append(answer.status_code)

    assert codes == [200, 200, 200, 429]


async def test_api__hosts_and_health__are_not_counted(world: World) -> None:
    api = limited(world, stopped())

    async with client_from(api) as client:
        hosts = [await client.get("/jobs", headers=HOST) for _ in range(9)]
        health = [await client.get("/health") for _ in range(9)]

    assert {each.status_code for each in (*hosts, *health)} == {200}
    assert "ratelimit-limit" not in hosts[0].headers


# ---------------------------------------------------------------------------------------------- sdk


async def test_client__limited__comes_back_when_it_was_told_to(world: World) -> None:
    now = [SECOND]
    api = limited(world, MemoryLimiter(lambda: now[0]), Rate(per_second=1, burst=1))
    loop, told = asyncio.get_running_loop(), list[Unavailable]()

    def refused(error: Unavailable) -> None:
        told.append(error)
        now[0] += SECOND

    async with MarketClient(SITE, transport=httpx.ASGITransport(make_app(api))) as client:
        await client.call(GET_JOBS)
        began = loop.time()
        await retrying(
            lambda: client.call(GET_JOBS), patience=timedelta(seconds=10), on_error=refused
        )
        waited = loop.time() - began

    assert waited >= 0.9
    assert isinstance(told[0], RateLimited) and told[0].data["retry_after"] == 1
    assert len(told) == 1
