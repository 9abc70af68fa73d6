"""A side that falls silent loses its session, as if it had been reset; who beats keeps it."""

import asyncio
from datetime import timedelta

import pytest

from contracts.terms.errors import PeerUnreachable
from tests.integration.transport.harness import (
    ANY_PORT,
    DEADLINE,
    METHODS,
    MemoryNet,
    Net,
    Peer,
    greeted,
    key,
    pair,
    until,
)
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from training.transport.framing import BEAT
from training.transport.port import Limits

QUICK = Limits(silence=timedelta(seconds=0.2))


async def test_session__other_side_says_nothing__ends_and_its_calls_with_it(net: Net) -> None:
    one, two, address = await pair(net, server_limits=QUICK)
    await greeted(net, 2, one.key, address)
    await until(lambda: two.key in one.sessions)
    session = one.sessions[two.key]

    with pytest.raises(PeerUnreachable, match=r"silent for 0\.2 s"):
        await session.call("echo", b"", deadline=DEADLINE)

    await until(lambda: two.key not in one.sessions)


@pytest.mark.simulated_time
async def test_session__nobody_calls__lives_on_by_beats() -> None:
    net = MemoryNet()
    _one, two, address = await pair(net, server_limits=QUICK, client_limits=QUICK)
    session = await two.dial(key(1), [address], deadline=DEADLINE)

    await asyncio.sleep(60.0)  # many times as long as a silent side has

    assert not session.closed
    await net.close()


async def test_session__idle_side__says_that_it_lives(net: Net) -> None:
    one, _two, address = await pair(net, server_limits=QUICK)

    pipe = await greeted(net, 2, one.key, address)

    assert await pipe.read() == BEAT


@pytest.mark.simulated_time
async def test_silence__both_ways__is_noticed_by_both_and_ends_without_a_word_later() -> None:
    network, lost = MemoryNetwork(), asyncio.Semaphore(0)
    one = MemoryTransport(network, key(1), METHODS, limits=QUICK)
    two = MemoryTransport(network, key(2), METHODS, limits=QUICK)
    one.set_members([two.key])
    address = await one.serve(Peer(), listen=ANY_PORT, on_disconnect=lambda _: lost.release())
    await two.serve(Peer(), on_disconnect=lambda _: lost.release())
    assert address is not None
    await two.dial(one.key, [address], deadline=DEADLINE)

    two.silence(one.key)
    for _ in "both":
        await lost.acquire()
        if not one.sessions and not two.sessions:
            break
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await two.dial(one.key, [address], deadline=DEADLINE)
    two.hear(one.key)

    session = await two.dial(one.key, [address], deadline=DEADLINE)
    await session.call("echo", b"", deadline=DEADLINE)
    await two.close()
    await one.close()
