"""Beats that wait for a lease: answered at once when one comes, and never longer than was asked."""

import asyncio

import pytest

from contracts.terms.errors import Expired
from contracts.terms.moments import UnixMillis
from market.bodies.offers import Heartbeat
from market.bodies.routes import POST_OFFER_HEARTBEAT
from market.bodies.signing import heartbeat_digest
from market.service.hear import SessionKeys, hear_offer
from market.service.rows import HeartbeatRow
from tests.integration.market.client import sdk
from tests.integration.market.test_rounds import funded_job
from tests.support.history import make_session
from tests.support.market_world import World, sign_digest


def beat_of(world: World, name: str) -> Heartbeat:
    world.beats += 1
    signed = heartbeat_digest(world.offers[name], world.now)
    return Heartbeat(at=world.now, signature=sign_digest(make_session(f"agent {name}"), signed))


async def test_heartbeat__lease_comes_while_it_waits__is_answered_with_it(world: World) -> None:
    await world.register()
    offer = await world.offer("ann", 10**11)
    await funded_job(world)
    async with sdk(world) as client:
        waiting = asyncio.create_task(
            client.call(POST_OFFER_HEARTBEAT, beat_of(world, "ann"), offer=offer, wait=5)
        )
        while not waiting.done():  # its beat, then the round that finds it
            await asyncio.sleep(0.01)
            await world.clear()
        answered = await waiting

    assert [lease.state for lease in answered.leases] == ["reserved"]


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
