"""Lists in parts: each row once, in order, whatever is inserted meanwhile."""

import base64
import json
from dataclasses import replace

import pytest

from contracts.terms.amounts import UINT64_MAX, BaseUnits
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.base import Problem, read_body
from market.bodies.jobs import JobsView
from market.bodies.offers import OffersView
from market.bodies.routes import GET_CONVICTIONS_OF
from market.service.rows import ConvictionRow, JobRow
from tests.integration.market.client import client_of, sdk
from tests.support.history import make_digest, make_wallet
from tests.support.market_world import World, market_spec


async def copy_job(world: World, first: JobRow, number: int, at: int) -> None:
    """`number` more jobs like `first`, all of one moment."""
    async with world.new_work() as work:
        await work[JobRow].remove(first.job)
        for index in range(number):
            job = JobId(make_digest("job", at, index))
            await work[JobRow].add(replace(first, job=job, posted_at=UnixMillis(at)))


async def test_jobs__of_one_moment_in_parts__are_each_shown_once(world: World) -> None:
    await world.register()
    first = await world.post(market_spec())
    await copy_job(world, first, 5, at=1000)
    shown: list[bytes] = []

    async with client_of(world) as client:
        part = read_body(JobsView, (await client.get("/jobs?limit=2")).content)
        shown += [job.job for job in part.jobs]
        await copy_job(world, first, 3, at=2000)  # newer: they stand before what was shown
        while part.next is not None:
            response = await client.get(f"/jobs?limit=2&cursor={part.next}")
            part = read_body(JobsView, response.content)
            shown += [job.job for job in part.jobs]

    assert sorted(shown) == sorted(make_digest("job", 1000, index) for index in range(5))
    assert shown == sorted(shown)


async def test_offers__some_are_over__parts_are_full_of_those_that_stand(world: World) -> None:
    prices = [7, 3, UINT64_MAX, 5]
    for name, price in zip(("ann", "bob", "cyd", "dan"), prices, strict=True):
        await world.offer(name, price, expires_at=world.now // 1000 + (10 if price == 3 else 999))
    world.wait(100)

    async with client_of(world) as client:
        first = read_body(OffersView, (await client.get("/offers?limit=2")).content)
        response = await client.get(f"/offers?limit=1&cursor={first.next}")
        last = read_body(OffersView, response.content)

    assert [each.price for each in first.offers] == [5, 7]
    assert [each.price for each in last.offers] == [UINT64_MAX] and last.next is None


async def test_client__lists_with_many_parts__are_read_to_their_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = make_wallet("ann").account
    none = b"\x90"
    rows = [
        ConvictionRow(
            JobId(make_digest("job", step)), make_digest("subject", step), step, account,
            BaseUnits(1), none, none,
        )
        for step in range(1, 1203)
    ]  # fmt: skip
    async with world.new_work() as work:
        await work[ConvictionRow].add_all(rows)

    async with sdk(world) as client:
        found = (await client.whole(GET_CONVICTIONS_OF, account=account)).convictions

    assert [each.step for each in found] == list(range(1, 1203))


def cursor(table: str, value: int, key: bytes) -> str:
    """What a cursor spells, with a number that no column holds."""
    spelled = json.dumps([table, value, base64.b64encode(key).decode()]).encode()
    return base64.urlsafe_b64encode(spelled).decode().rstrip("=")


async def test_cursor__of_no_list_or_of_another__is_malformed(world: World) -> None:
    for name in ("ann", "bob"):
        await world.offer(name, 5)

    async with client_of(world) as client:
        part = read_body(OffersView, (await client.get("/offers?limit=1")).content)
        wrong = ["x", "AAAA", "a" * 512, "-_-_", "A" * 513, "", "%00"]
        wrong += [cursor(table, 10**40, ZERO_DIGEST) for table in ("jobs", "offers")]
        paths = [f"/{name}?cursor={each}" for each in wrong for name in ("jobs", "offers")]
        for path in (*paths, f"/jobs?cursor={part.next}"):
            response = await client.get(path)
            assert response.status_code == 400, path
            assert read_body(Problem, response.content).code == "malformed"
