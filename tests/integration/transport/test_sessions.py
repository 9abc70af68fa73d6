"""Who gets a session, and for how long, over both transports."""

import asyncio
from contextlib import suppress

import pytest

from contracts.terms import errors
from contracts.terms.moments import UnixMillis
from tests.integration.transport.harness import (
    ANY_PORT,
    DEADLINE,
    NOW,
    Net,
    Peer,
    connected,
    key,
    pair,
    until,
)
from tests.support.patience import patience
from training.transport.port import Limits, Session


async def test_dial__pin_of_another_peer__unreachable_and_named(net: Net) -> None:
    one, two, address = await pair(net)

    with pytest.raises(errors.PeerUnreachable, match=key(3).hex()[:16]) as caught:
        await two.dial(key(3), [address], deadline=DEADLINE)

    assert caught.value.data == {"node": key(3).hex(), "hints": [address]}
    assert one.sessions == {}


async def test_dial__by_a_stranger__unreachable(net: Net) -> None:
    one, _two, address = await pair(net)
    stranger = net.peer(3)

    with pytest.raises(errors.PeerUnreachable, match=one.key.hex()[:16]):
        await stranger.dial(one.key, [address], deadline=DEADLINE)

    assert one.sessions == {}


async def test_dial__oneself_without_being_a_member__forbidden(net: Net) -> None:
    one, _two, address = await pair(net)

    with pytest.raises(errors.Forbidden):
        await one.dial(one.key, [address], deadline=DEADLINE)


async def test_dial__no_address_known__unreachable(net: Net) -> None:
    _one, two, _address = await pair(net)

    with pytest.raises(errors.PeerUnreachable, match="no address"):
        await two.dial(key(1), [], deadline=DEADLINE)


async def test_dial__dead_address_first__takes_the_next(net: Net) -> None:
    one, two, address = await pair(net)
    gone = net.peer(3)
    dead = await gone.serve(Peer(), listen=ANY_PORT)
    await gone.close()
    assert dead is not None

    session = await two.dial(one.key, [dead, address], deadline=DEADLINE)

    assert session.node == one.key


async def test_dial__no_time_left__deadline_exceeded_and_named(net: Net) -> None:
    one, two, address = await pair(net)

    with pytest.raises(errors.DeadlineExceeded, match=one.key.hex()[:16]):
        await two.dial(one.key, [address], deadline=0.0)


@pytest.mark.parametrize("skew_ms", [-121_000, 121_000])
async def test_dial__clock_off_by_two_minutes__expired(net: Net, skew_ms: int) -> None:
    one, _two, address = await pair(net)
    late = net.peer(3, clock=lambda: UnixMillis(NOW + skew_ms))
    one.set_members([late.key])

    with pytest.raises(errors.Expired) as caught:
        await late.dial(one.key, [address], deadline=DEADLINE)

    assert caught.value.data["skew_ms"] == skew_ms


async def test_members__removed_while_connected__is_closed_and_may_not_dial(net: Net) -> None:
    one, two, address = await pair(net)
    three = net.peer(3)
    one.set_members([two.key, three.key])
    removed = await two.dial(one.key, [address], deadline=DEADLINE)
    stays = await three.dial(one.key, [address], deadline=DEADLINE)

    one.set_members([three.key])

    await removed.wait_closed()
    with pytest.raises(errors.PeerUnreachable):
        await two.dial(one.key, [address], deadline=DEADLINE)
    assert (await stays.call("echo", b"here", deadline=DEADLINE)).header == b"here"


async def test_members__of_a_dialler__do_not_end_its_own_dials(net: Net) -> None:
    _one, two, session = await connected(net)

    two.set_members([key(3)])

    assert (await session.call("echo", b"here", deadline=DEADLINE)).header == b"here"


async def test_sessions__end__both_sides_are_told(net: Net) -> None:
    told: list[str] = []
    one, two = net.peer(1), net.peer(2)
    one.set_members([two.key])
    address = await one.serve(
        Peer(), listen=ANY_PORT, on_disconnect=lambda _: told.append("listener")
    )
    await two.serve(Peer(), on_disconnect=lambda _: told.append("dialler"))
    assert address is not None

    session = await two.dial(one.key, [address], deadline=DEADLINE)
    assert (two.sessions[one.key], len(one.sessions), told) == (session, 1, [])
    await session.close()
    await until(lambda: len(told) == 2)

    assert sorted(told) == ["dialler", "listener"]
    assert (dict(one.sessions), dict(two.sessions)) == ({}, {})


async def test_sessions__same_peer_dials_again__the_newest_is_used(net: Net) -> None:
    client = Peer()
    one, two, address = await pair(net, client=client)
    first = await two.dial(one.key, [address], deadline=DEADLINE)
    known_first = one.sessions[two.key]

    second = await two.dial(one.key, [address], deadline=DEADLINE)
    known_second = one.sessions[two.key]

    assert known_first is not known_second
    await second.close()
    await until(lambda: one.sessions.get(two.key) is known_first)
    assert (await first.call("echo", b"both", deadline=DEADLINE)).header == b"both"


async def test_sessions__more_than_a_peer_may_hold__the_oldest_is_closed(net: Net) -> None:
    one, two, address = await pair(net, server_limits=Limits(max_sessions_per_peer=2))
    dialled: list[Session] = []
    for _ in range(3):
        dialled.append(await two.dial(one.key, [address], deadline=DEADLINE))

    await dialled[0].wait_closed()

    assert [session.closed for session in dialled] == [True, False, False]


async def test_close__twice__is_safe(net: Net) -> None:
    _one, two, session = await connected(net)

    await session.close()
    await session.close()
    await two.close()
    await two.close()

    with pytest.raises(errors.PeerUnreachable):
        await session.call("echo", b"", deadline=DEADLINE)


async def test_close__while_a_dial_is_under_way__returns_and_leaves_no_session(net: Net) -> None:
    one, _two, address = await pair(net)
    diallers = {turns: net.peer(10 + turns) for turns in (*range(8), 12, 16)}
    one.set_members([each.key for each in diallers.values()])
    for turns, dialler in diallers.items():
        dialling = asyncio.create_task(dialler.dial(one.key, [address], deadline=0.3))
        for _ in range(turns):
            await asyncio.sleep(0)

        async with asyncio.timeout(patience(10)):
            await dialler.close()

        with suppress(errors.PeerUnreachable, errors.DeadlineExceeded):
            assert (await dialling).closed, turns
        assert dialler.sessions == {}


async def test_serve__taken_address__wrong_configuration_and_another_works(net: Net) -> None:
    _one, _two, address = await pair(net)
    three = net.peer(3)

    with pytest.raises(errors.WrongConfiguration, match=address):
        await three.serve(Peer(), listen=address)

    assert await three.serve(Peer(), listen=ANY_PORT) not in (None, address)


@pytest.mark.parametrize("address", ["", "nonsense", "host:", ":1", "host:port", "host:70000000"])
async def test_serve__no_address__wrong_configuration(net: Net, address: str) -> None:
    with pytest.raises(errors.WrongConfiguration):
        await net.peer(1).serve(Peer(), listen=address)


async def test_serve__twice__wrong_configuration(net: Net) -> None:
    one, _two, _address = await pair(net)

    with pytest.raises(errors.WrongConfiguration):
        await one.serve(Peer())
