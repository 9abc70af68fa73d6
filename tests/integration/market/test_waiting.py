"""Beats that wait for a lease: answered at once when one comes, and never longer than was asked."""

import asyncio

import pytest

from contracts.terms.errors import Expired, NotFound
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.api.arrivals import Arrivals
from market.bodies import Heartbeat, heartbeat_digest
from market.service.hear import SessionKeys, hear_offer
from market.service.leases import LEASES, lease_topic
from market.service.rows import HeartbeatRow
from tests.integration.market.client import ON_MEMORY
from tests.integration.market.test_earnings import sdk
from tests.integration.market.test_rounds import funded_job
from tests.support.history import make_session
from tests.support.market_world import World, sign_digest


def beat_of(world: World, name: str) -> Heartbeat:
    world.beats += 1
    signed = heartbeat_digest(world.offers[name], world.now)
    return Heartbeat(at=world.now, signature=sign_digest(make_session(f"agent {name}"), signed))


@ON_MEMORY
async def test_heartbeat__lease_comes_while_it_waits__is_answered_with_it(world: World) -> None:
    await world.register()
    offer = await world.offer("ann", 10**11)
    await funded_job(world)
    async with sdk(world) as client:
        waiting = asyncio.create_task(
            client.heartbeat_offer(offer, beat_of(world, "ann"), wait_seconds=5)
        )
        while not waiting.done():  # its beat, then the round that finds it
            await asyncio.sleep(0.01)
            await world.clear()
        answered = await waiting

    assert [lease.state for lease in answered.leases] == ["reserved"]


@ON_MEMORY
async def test_heartbeat__more_seconds_than_a_beat_may_be_late__is_malformed(world: World) -> None:
    await world.register()
    offer = await world.offer("ann", 10**11)
    async with sdk(world) as client:
        with pytest.raises(Exception, match="wait"):
            await client.heartbeat_offer(offer, beat_of(world, "ann"), wait_seconds=6)


async def test_arrivals__topic_of_another_offer__wakes_nobody(world: World) -> None:
    arrivals = Arrivals(world.wakeup, LEASES)
    ann, bob = Digest(b"a" * 32), Digest(b"b" * 32)
    with arrivals.of(lease_topic(ann)) as for_ann, arrivals.of(lease_topic(bob)) as for_bob:
        while not for_ann.is_set():
            await world.wakeup.wake([lease_topic(ann)])
            await asyncio.sleep(0)
        await arrivals.wait(for_ann, 60)
        assert not for_bob.is_set()
        await arrivals.close()
        await arrivals.wait(for_bob, 60)


async def test_hear__beat_that_is_not_later__is_refused_and_changes_nothing(world: World) -> None:
    await world.register()
    offer = await world.offer("ann", 10**11)
    beat, keys = beat_of(world, "ann"), SessionKeys()
    now, later = world.now, UnixMillis(world.now + 5)

    await hear_offer(offer, now, beat.signature, now, world.new_work(), keys)
    with pytest.raises(Expired, match="said before"):
        await hear_offer(offer, now, beat.signature, later, world.new_work(), keys)

    async with world.new_work() as work:
        assert await work[HeartbeatRow].get(offer) == HeartbeatRow(offer, now, now)


async def test_hear__offer_that_nobody_made__is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await hear_offer(Digest(bytes(32)), world.now, bytes(64), world.now, world.new_work())
