"""Calls to a peer without an address, over the session that it keeps with somebody else."""

import asyncio
import gc
from collections.abc import Callable

import pytest

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from tests.integration.transport.harness import ANY_PORT, DEADLINE, Net, Peer, key, method, until
from tests.support.patience import patience
from training.transport import calling
from training.transport.dispatch import Dispatcher
from training.transport.framing import Assembler
from training.transport.port import Session, Transport
from training.transport.reach import DIAL_AGAIN, Reach
from training.transport.relay import Relay, RelayedSession, RelayLimits
from training.transport.wire import RELAY, AnyMethod, Methods

RELAYED = Methods([method("echo"), method("wait"), method("fail")])
OWN = Methods([*RELAYED.values(), method("secret"), RELAY])
COORDINATOR, ASKER, HIDDEN = 1, 2, 3
SHORT = 0.05


def allow(_caller: SessionKey, _to: SessionKey, _method: AnyMethod) -> None:
    """Everybody may ask everybody."""


class World:
    """A coordinator that relays, an asker and a hidden peer, both with a session to it."""

    def __init__(
        self,
        net: Net,
        *,
        authorize: Callable[[SessionKey, SessionKey, AnyMethod], None] = allow,
        limits: RelayLimits | None = None,
    ) -> None:
        self.coordinator, self.asker, self.hidden = (
            net.peer(number, methods=OWN) for number in (COORDINATOR, ASKER, HIDDEN)
        )
        self.peer = Peer()
        self.relay = Relay(lambda: self.coordinator.sessions, RELAYED, authorize, limits)

    async def open(self) -> RelayedSession:
        """The asker's session to the hidden peer."""
        dispatcher = Dispatcher()
        dispatcher.on(RELAY, self.relay.serve)
        self.coordinator.set_members([key(ASKER), key(HIDDEN)])
        self.address = await self.coordinator.serve(dispatcher, listen=ANY_PORT)
        await self.hidden.serve(self.peer)
        await self.asker.serve(Peer())
        self.kept = await self.dial(self.hidden)
        return RelayedSession(key(HIDDEN), await self.dial(self.asker), RELAYED)

    async def dial(self, transport: Transport) -> Session:
        """A session with the coordinator."""
        return await transport.dial(key(COORDINATOR), [str(self.address)], deadline=DEADLINE)


async def test_relay__peer_without_address__header_and_tensors_both_ways(net: Net) -> None:
    world = World(net)
    session = await world.open()

    reply = await session.call("echo", b"head", [b"a" * 7_000, b""], deadline=DEADLINE)

    assert (session.node, session.closed) == (key(HIDDEN), False)
    assert reply.header == b"head"
    assert [bytes(tensor) for tensor in reply.tensors] == [b"a" * 7_000, b""]
    assert world.peer.calls == [(key(COORDINATOR), "echo", b"head")]


async def test_relay__request_with_a_large_tensor__is_refused(net: Net) -> None:
    session = await World(net).open()

    with pytest.raises(errors.TooLarge):
        await session.call("echo", b"head", [bytes(2**20)], deadline=DEADLINE)


async def test_relay__error_of_the_target__is_the_same_and_says_who(net: Net) -> None:
    world = World(net)
    world.peer.error = errors.Conflict("another copy", unit=3)
    session = await world.open()

    with pytest.raises(errors.Conflict, match="another copy") as raised:
        await session.call("fail", b"", deadline=DEADLINE)

    assert raised.value.data == {"unit": 3, "peer": key(HIDDEN).hex()}


async def test_relay__target_lost_during_a_call__is_unreachable_and_room_is_free(net: Net) -> None:
    world = World(net, limits=RelayLimits(max_calls=1))
    session = await world.open()
    call = asyncio.create_task(session.call("wait", b"", deadline=DEADLINE))
    await world.peer.entered.acquire()

    await world.hidden.close()

    with pytest.raises(errors.PeerUnreachable):
        await call
    with pytest.raises(errors.PeerUnreachable, match="has no session here"):
        await session.call("echo", b"", deadline=DEADLINE)


async def test_relay__method_not_given__is_not_passed_on(net: Net) -> None:
    world = World(net)
    through = (await world.open())._through

    for name in ("secret", RELAY.name):
        everything = RelayedSession(key(HIDDEN), through, OWN)
        with pytest.raises(errors.Forbidden, match="not passed on"):
            await everything.call(name, b"", deadline=DEADLINE)
    with pytest.raises(errors.NotFound):
        await RelayedSession(key(HIDDEN), through, RELAYED).call("secret", b"", deadline=DEADLINE)
    assert world.peer.calls == []


async def test_relay__not_allowed__target_hears_nothing(net: Net) -> None:
    asked: list[tuple[SessionKey, SessionKey, str]] = []

    def authorize(caller: SessionKey, to: SessionKey, method: AnyMethod) -> None:
        asked.append((caller, to, method.name))
        raise errors.Forbidden("no")

    world = World(net, authorize=authorize)
    session = await world.open()

    with pytest.raises(errors.Forbidden):
        await session.call("echo", b"", deadline=DEADLINE)
    assert asked == [(key(ASKER), key(HIDDEN), "echo")]
    assert world.peer.calls == []


async def test_relay__caller_gives_up__so_does_the_target(net: Net) -> None:
    world = World(net)
    session = await world.open()

    with pytest.raises(errors.DeadlineExceeded):
        await session.call("wait", b"", deadline=SHORT)

    await asyncio.wait_for(world.peer.cancelled.wait(), patience(DEADLINE))


async def test_relay__room_for_one__calls_wait_in_order(net: Net) -> None:
    world = World(net, limits=RelayLimits(max_calls=1))
    session = await world.open()
    calls = [asyncio.create_task(session.call("wait", b"", deadline=DEADLINE)) for _ in range(3)]
    await world.peer.entered.acquire()

    world.peer.gate.set()
    await asyncio.gather(*calls)

    assert world.peer.most_running == 1


async def test_relay__too_many_wait__the_next_is_overloaded(net: Net) -> None:
    world = World(net, limits=RelayLimits(max_calls_per_caller=1, max_waiting=1))
    session = await world.open()
    calls = [asyncio.create_task(session.call("wait", b"", deadline=DEADLINE)) for _ in range(3)]

    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)

    assert [type(task.exception()) for task in done] == [errors.Overloaded]
    world.peer.gate.set()
    await asyncio.wait(calls)
    assert [task.exception() for task in calls if task not in done] == [None, None]


async def test_relay__answer_larger_than_wanted__is_never_stored(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    class Counting(Assembler):
        """Says what it takes."""

        def feed(self, body: memoryview) -> None:
            """See `Assembler.feed`."""
            super().feed(body)
            stored.append(sum(map(len, self._parts)))

    monkeypatch.setattr(calling, "Assembler", Counting)
    world = World(net)
    through = (await world.open())._through
    session = RelayedSession(key(HIDDEN), through, RELAYED, answer_bytes=1000)

    await session.call("echo", b"head", [bytes(996)], deadline=DEADLINE)
    stored.clear()
    world.peer.answer = b"a" * 2**20
    with pytest.raises(errors.TooLarge, match="larger than wanted"):
        await session.call("echo", b"head", deadline=DEADLINE)

    assert max(stored) < 1000


async def test_relay__call_that_would_take_for_ever__keeps_its_room_for_so_long(net: Net) -> None:
    world = World(net, limits=RelayLimits(longest=SHORT))
    session = await world.open()

    async with asyncio.timeout(patience(DEADLINE / 2)):
        with pytest.raises(errors.DeadlineExceeded):
            await session.call("wait", b"", deadline=DEADLINE)
        await world.peer.cancelled.wait()


async def test_relay__answer_that_never_fits__is_refused_before_it_is_asked_for(net: Net) -> None:
    world = World(net, limits=RelayLimits(max_bytes_per_caller=100))
    session = await world.open()

    with pytest.raises(errors.TooLarge, match="up to"):
        await session.call("echo", b"", deadline=DEADLINE)
    assert world.peer.calls == []


async def test_relay__many_answers__room_is_free_again_after_each(net: Net) -> None:
    world = World(net, limits=RelayLimits(max_calls=1, max_calls_per_caller=1))
    session = await world.open()

    gc.disable()  # the room must not wait for a collector
    try:
        for _ in range(5):
            await session.call("echo", b"head", [b"tensor"], deadline=DEADLINE)
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------- the way


class Ways:
    """A world in which the asker chooses its way."""

    def __init__(self, net: Net) -> None:
        self.world = World(net)
        self.now = 0.0
        self.reach = Reach(
            self.world.asker, key(COORDINATOR), RELAYED, dial=SHORT, clock=lambda: self.now
        )


async def test_reach__no_address__goes_through_the_coordinator(net: Net) -> None:
    ways = Ways(net)
    await ways.world.open()

    session = await ways.reach.session(key(HIDDEN), "")

    assert (await session.call("echo", b"1", deadline=DEADLINE)).header == b"1"
    assert ways.world.peer.calls == [(key(COORDINATOR), "echo", b"1")]


async def test_reach__address_that_answers__is_dialled_once_for_all(net: Net) -> None:
    world = World(net)
    await world.open()
    reach = Reach(world.hidden, key(COORDINATOR), RELAYED)
    asker = net.peer(9, methods=OWN)
    asker.set_members([key(HIDDEN)])
    address = str(await asker.serve(Peer(), listen=ANY_PORT))

    found = await asyncio.gather(*(reach.session(key(9), address) for _ in range(4)))

    assert len(set(map(id, found))) == 1
    assert not isinstance(found[0], RelayedSession)
    assert len(asker.sessions) == 1


async def test_reach__silent_address__is_left_alone_for_a_while(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = Ways(net)
    await ways.world.open()
    dialled: list[str] = []
    dial = ways.world.asker.dial

    async def counting(node: SessionKey, hints: list[str], *, deadline: float) -> Session:
        dialled.extend(hints)
        return await dial(node, hints, deadline=deadline)

    monkeypatch.setattr(ways.world.asker, "dial", counting)
    for now in (0.0, DIAL_AGAIN - 1, DIAL_AGAIN + 1):
        ways.now = now
        assert isinstance(await ways.reach.session(key(HIDDEN), "127.0.0.1:1"), RelayedSession)

    assert dialled == ["127.0.0.1:1"] * 2


async def test_reach__session_that_the_other_side_dialled__is_used(net: Net) -> None:
    ways = Ways(net)
    await ways.world.open()

    session = await ways.reach.session(key(COORDINATOR), "")

    assert session is ways.world.asker.sessions[key(COORDINATOR)]


async def test_reach__no_way_at_all__is_unreachable(net: Net) -> None:
    ways = Ways(net)
    await ways.world.open()
    await ways.world.asker.sessions[key(COORDINATOR)].close()
    await until(lambda: not ways.world.asker.sessions)

    with pytest.raises(errors.PeerUnreachable, match="no address"):
        await ways.reach.session(key(HIDDEN), "")
