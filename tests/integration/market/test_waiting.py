"""Beats that wait for a lease: answered at once when one comes, and never longer than was asked."""

import asyncio

from market.bodies.routes import POST_OFFER_HEARTBEAT
from tests.integration.market.client import sdk
from tests.integration.market.test_rounds import funded_job
from tests.support.market_world import World


async def test_heartbeat__lease_comes_while_it_waits__is_answered_with_it(world: World) -> None:
    await world.register()
    offer = await world.offer("ann", 10**11)
    await funded_job(world)
    async with sdk(world) as client:
        waiting = asyncio.create_task(
            client.call(POST_OFFER_HEARTBEAT, world.offer_beat("ann"), offer=offer, wait=5)
        )
        while not waiting.done():  # its beat, then the round that finds it
            await asyncio.sleep(0.01)
            await world.clear()
        answered = await waiting

    assert [lease.state for lease in answered.leases] == ["reserved"]
