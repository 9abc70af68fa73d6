"""How the market says that it is."""

import pytest

from contracts.terms.errors import ServiceUnreachable
from market.bodies.routes import GET_STATUS
from market.service.note_beat import note_beat
from tests.integration.market.client import sdk
from tests.support.market_world import World, market_spec


async def test_status__market_at_work__says_what_waits_and_since_when(world: World) -> None:
    async with sdk(world) as client:
        empty = await client.call(GET_STATUS)
        maker = await world.start_job()
        await world.seal(maker)
        await world.post(market_spec(salt=2))
        for queue in ("default", "chain"):
            await note_beat(queue, world.now, world.new_work())
        world.wait(7)
        busy = await client.call(GET_STATUS)
        await world.tick()
        await world.tick()
        done = await client.call(GET_STATUS)
    assert set(empty.jobs.values()) == {0} and empty.batch is None and empty.beats == ()
    assert (busy.jobs["running"], busy.jobs["draft"]) == (1, 1)
    (fund,) = busy.actions
    assert (fund.what, fund.waiting) == ("fund", 1) and fund.age_millis >= 7000
    assert busy.unanchored is not None and busy.unanchored.job == maker.spec.job()
    assert (busy.unanchored.step, busy.unanchored.seals) == (1, 1)
    assert [(beat.queue, beat.lag_millis) for beat in busy.beats] == [
        ("chain", 2000), ("default", 2000),
    ]  # fmt: skip
    (host,) = busy.hosts
    assert host.host == "host" and host.age_millis >= 7000 and host.is_heard
    assert done.jobs["funded"] == 1 and done.actions == () and done.unanchored is None
    assert done.batch is not None and done.batch.block is not None
    assert done.chain.reachable and done.chain.head == done.chain.settled == done.chain.seen
    assert (empty.chain.lag_blocks, done.chain.lag_blocks) == (None, 0)
    assert (done.feed.streams, done.feed.hears, done.feed.lag_millis) == (0, None, None)


async def test_status__chain_is_away__answers_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise ServiceUnreachable("no node")

    monkeypatch.setattr(world.chain, "head", away)
    async with sdk(world) as client:
        found = await client.call(GET_STATUS)
    assert not found.chain.reachable and found.chain.head is None and found.version == "0"
    assert found.chain.lag_blocks is None
