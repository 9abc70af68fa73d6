"""A market in which nothing happens asks the chain for its head, and its hosts wait for jobs."""

import asyncio

from contracts.chain.blocks import Block, Log
from contracts.terms.moments import UnixMillis
from market.bodies.routes import POST_CLAIM
from market.bodies.signing import HostCredential
from market.service.rows import HostedJobRow, HostRow
from market.service.sync_chain import sync_chain
from tests.integration.market.client import TOKEN, sdk
from tests.support.fakes.memory_chain import MemoryChain
from tests.support.history import DOMAIN, START
from tests.support.market_world import ANCHORER, World


class Asked(MemoryChain):
    """Notes which reads it is asked for, beside that of its heads."""

    def __init__(self) -> None:
        super().__init__(DOMAIN, ANCHORER, now=START)
        self.reads: list[str] = []

    async def block(self, number: int) -> Block | None:
        """See `Chain.block`."""
        self.reads.append("block")
        return await super().block(number)

    async def events(self, first: int, last: int) -> list[Log]:
        """See `Chain.events`."""
        self.reads.append("events")
        return await super().events(first, last)


async def test_sync__head_is_the_one_that_was_read_last__nothing_more_is_asked(
    world: World,
) -> None:
    chain = Asked()
    chain.give_tokens(ANCHORER, 1)
    await sync_chain(world.now, world.new_work(), chain, first_block=0)
    assert "events" in chain.reads
    chain.reads.clear()

    await sync_chain(world.now, world.new_work(), chain, first_block=0)

    assert not chain.reads


async def test_claim__job_comes_while_its_host_waits__is_answered_with_it(world: World) -> None:
    job = (await world.start_job()).spec.job()
    elsewhere = HostedJobRow(job, "another host", UnixMillis(world.now + 60_000))
    async with world.new_work() as work:
        await work[HostedJobRow].add(elsewhere)
    world.wait(1)
    async with sdk(world, HostCredential("host").shown(TOKEN)) as host:
        waiting = asyncio.create_task(host.call(POST_CLAIM, wait=5))
        while (await world.row(HostRow, "host")).heard_at < world.now:  # until it has asked
            await asyncio.sleep(0.01)
        async with world.new_work() as work:
            await work[HostedJobRow].remove(job)
        while not waiting.done():  # it listens, and is woken
            await asyncio.sleep(0.01)
            await world.wakeup.wake(["host"])
        (held,) = (await waiting).jobs

    assert held.job == job
