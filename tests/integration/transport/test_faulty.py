"""Faults by script, over both transports: each hits the call it names and no other."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from contracts.terms.errors import DeadlineExceeded, PeerUnreachable
from tests.integration.transport.harness import ANY_PORT, DEADLINE, Net, Peer
from tests.support.fakes.faulty_transport import (
    DIAL,
    AnyFault,
    Delay,
    Fault,
    FaultyTransport,
    OnReply,
    When,
)
from training.transport.port import Session

SHORT = 0.05  # seconds, for calls that are dropped by script


class Faulty:
    """Peer 1 listening, peer 2 dialling through a faulty transport."""

    def __init__(self, net: Net, *faults: AnyFault, method: str = "echo") -> None:
        self.server, self.client = Peer(), Peer()
        self.one = net.peer(1)
        inner = net.peer(2)
        self.one.set_members([inner.key])
        script: dict[When, AnyFault] = {
            (method, self.one.key, number): fault for number, fault in enumerate(faults, start=1)
        }
        self.slept: list[float] = []
        self.two = FaultyTransport(inner, script, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def dial(self) -> Session:
        """The faulty side of a new session."""
        self.address = await self.one.serve(self.server, listen=ANY_PORT)
        await self.two.serve(self.client)
        assert self.address is not None
        return await self.two.dial(self.one.key, [self.address], deadline=DEADLINE)


async def test_faulty__drop__first_call_never_arrives_second_does(net: Net) -> None:
    faulty = Faulty(net, Fault.DROP)
    session = await faulty.dial()

    with pytest.raises(DeadlineExceeded):
        await session.call("echo", b"1", deadline=SHORT)
    await session.call("echo", b"2", deadline=DEADLINE)

    assert [header for _, _, header in faulty.server.calls] == [b"2"]
    assert faulty.two.struck == [(("echo", faulty.one.key, 1), Fault.DROP)]
    faulty.two.need_all_struck()


async def test_faulty__duplicate__arrives_twice_answered_once(net: Net) -> None:
    faulty = Faulty(net, Fault.DUPLICATE)
    session = await faulty.dial()

    reply = await session.call("echo", b"1", deadline=DEADLINE)

    assert reply.header == b"1"
    assert [header for _, _, header in faulty.server.calls] == [b"1", b"1"]


async def test_faulty__delay__waits_on_the_given_clock(net: Net) -> None:
    faulty = Faulty(net, Delay(timedelta(hours=1)))
    session = await faulty.dial()

    await session.call("echo", b"1", deadline=DEADLINE)

    assert faulty.slept == [3600.0]


@pytest.mark.parametrize(
    ("fault", "tensors"),
    [(Fault.TRUNCATE, [b"abcd", b"ab"]), (Fault.CORRUPT, [b"abcd", b"abbd"])],
)
@pytest.mark.parametrize("on", [lambda fault: fault, OnReply], ids=["request", "reply"])
async def test_faulty__tensor_changed__only_the_last(
    net: Net, on: Callable[[Fault], AnyFault], fault: Fault, tensors: list[bytes]
) -> None:
    faulty = Faulty(net, on(fault))
    session = await faulty.dial()

    reply = await session.call("echo", b"head", [b"abcd", b"abcd"], deadline=DEADLINE)

    assert (reply.header, [bytes(tensor) for tensor in reply.tensors]) == (b"head", tensors)
    faulty.two.need_all_struck()


async def test_faulty__partition__nothing_passes_either_way_until_healed(net: Net) -> None:
    faulty = Faulty(net, Fault.PARTITION)
    session = await faulty.dial()
    back = faulty.one.sessions[faulty.two.key]

    with pytest.raises(PeerUnreachable, match="partitioned"):
        await session.call("echo", b"1", deadline=DEADLINE)
    with pytest.raises(PeerUnreachable):
        await back.call("echo", b"back", deadline=DEADLINE)
    with pytest.raises(PeerUnreachable):
        await faulty.two.dial(faulty.one.key, [str(faulty.address)], deadline=DEADLINE)
    assert (faulty.server.calls, faulty.client.calls) == ([], [])

    faulty.two.heal(faulty.one.key)

    assert (await session.call("echo", b"2", deadline=DEADLINE)).header == b"2"
    assert (await back.call("echo", b"3", deadline=DEADLINE)).header == b"3"


@pytest.mark.parametrize(
    ("fault", "deadline", "error"),
    [(Fault.DROP, SHORT, DeadlineExceeded), (Fault.PARTITION, DEADLINE, PeerUnreachable)],
)
async def test_faulty__reply_lost__handled_but_not_answered(
    net: Net, fault: Fault, deadline: float, error: type[Exception]
) -> None:
    faulty = Faulty(net, OnReply(fault))
    session = await faulty.dial()

    with pytest.raises(error):
        await session.call("echo", b"1", deadline=deadline)

    assert [header for _, _, header in faulty.server.calls] == [b"1"]


async def test_faulty__dial_dropped__second_one_arrives(net: Net) -> None:
    faulty = Faulty(net, Fault.DROP, method=DIAL)
    faulty.address = await faulty.one.serve(faulty.server, listen=ANY_PORT)
    await faulty.two.serve(faulty.client)
    hints = [str(faulty.address)]

    with pytest.raises(DeadlineExceeded):
        await faulty.two.dial(faulty.one.key, hints, deadline=SHORT)
    session = await faulty.two.dial(faulty.one.key, hints, deadline=DEADLINE)

    assert (await session.call("echo", b"1", deadline=DEADLINE)).header == b"1"
    faulty.two.need_all_struck()
