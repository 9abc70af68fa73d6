"""Faults by script, over both transports: each hits the call it names and no other."""

import asyncio
from datetime import timedelta

import pytest

from contracts.terms.errors import (
    Conflict,
    DeadlineExceeded,
    Malformed,
    PeerUnreachable,
    WrongConfiguration,
)
from tests.integration.transport.harness import ANY_PORT, DEADLINE, Net, Peer
from training.fakes.faulty_transport import (
    DIAL,
    AnyFault,
    Delay,
    Fault,
    FaultyTransport,
    OnReply,
    Partition,
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


async def test_faulty__drop_of_the_reply__handled_but_not_answered(net: Net) -> None:
    faulty = Faulty(net, OnReply(Fault.DROP))
    session = await faulty.dial()

    with pytest.raises(DeadlineExceeded):
        await session.call("echo", b"1", deadline=SHORT)

    assert [header for _, _, header in faulty.server.calls] == [b"1"]


async def test_faulty__dropped_with_little_patience__deadline_is_not_waited_for(net: Net) -> None:
    faulty = Faulty(net)
    impatient = FaultyTransport(
        faulty.two, {("echo", faulty.one.key, 1): Fault.DROP}, patience=SHORT
    )
    await faulty.dial()

    with pytest.raises(DeadlineExceeded):
        await impatient.sessions[faulty.one.key].call("echo", b"1", deadline=DEADLINE)
    assert faulty.server.calls == []


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
    ("fault", "header", "tensors"),
    [(Fault.TRUNCATE, b"head", [b"abcd", b"ab"]), (Fault.CORRUPT, b"head", [b"abcd", b"abbd"])],
)
async def test_faulty__tensor_changed__only_the_last(
    net: Net, fault: Fault, header: bytes, tensors: list[bytes]
) -> None:
    faulty = Faulty(net, fault)
    session = await faulty.dial()

    reply = await session.call("echo", b"head", [b"abcd", b"abcd"], deadline=DEADLINE)

    assert (reply.header, [bytes(tensor) for tensor in reply.tensors]) == (header, tensors)


@pytest.mark.parametrize(("fault", "header"), [(Fault.TRUNCATE, b"he"), (Fault.CORRUPT, b"he`d")])
async def test_faulty__no_tensors__header_changed(net: Net, fault: Fault, header: bytes) -> None:
    faulty = Faulty(net, fault)
    session = await faulty.dial()

    assert (await session.call("echo", b"head", deadline=DEADLINE)).header == header


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


async def test_faulty__delayed_reply__handled_first_then_waits(net: Net) -> None:
    faulty = Faulty(net, OnReply(Delay(timedelta(hours=1))))
    session = await faulty.dial()

    await session.call("echo", b"1", deadline=DEADLINE)

    assert faulty.slept == [3600.0]
    assert len(faulty.server.calls) == 1


@pytest.mark.parametrize(
    ("fault", "tensors"),
    [(Fault.TRUNCATE, [b"abcd", b"ab"]), (Fault.CORRUPT, [b"abcd", b"abbd"])],
)
async def test_faulty__reply_changed__request_arrives_as_it_was(
    net: Net, fault: Fault, tensors: list[bytes]
) -> None:
    faulty = Faulty(net, OnReply(fault))
    session = await faulty.dial()

    reply = await session.call("echo", b"head", [b"abcd", b"abcd"], deadline=DEADLINE)

    assert (reply.header, [bytes(tensor) for tensor in reply.tensors]) == (b"head", tensors)
    faulty.two.need_all_struck()


async def test_faulty__corrupted_error__is_one_that_cannot_be_read(net: Net) -> None:
    faulty = Faulty(net, OnReply(Fault.CORRUPT), method="fail")
    faulty.server.error = Conflict("no")
    session = await faulty.dial()

    with pytest.raises(Malformed):
        await session.call("fail", b"1", deadline=DEADLINE)
    with pytest.raises(Conflict):
        await session.call("fail", b"2", deadline=DEADLINE)


async def test_faulty__error_of_the_peer_dropped__nothing_comes(net: Net) -> None:
    faulty = Faulty(net, OnReply(Fault.DROP), method="fail")
    faulty.server.error = Conflict("no")
    session = await faulty.dial()

    with pytest.raises(DeadlineExceeded):
        await session.call("fail", b"1", deadline=SHORT)


async def test_faulty__session_ends_before_a_reply_is_dropped__fault_has_not_hit(net: Net) -> None:
    faulty = Faulty(net, OnReply(Fault.DROP), method="wait")
    session = await faulty.dial()
    call = asyncio.create_task(session.call("wait", b"1", deadline=DEADLINE))
    await faulty.server.entered.acquire()

    await faulty.one.close()

    with pytest.raises(PeerUnreachable):
        await call
    assert list(faulty.two.missed) == [("wait", faulty.one.key, 1)]


async def test_faulty__partition_on_the_reply__handled_then_cut_off(net: Net) -> None:
    faulty = Faulty(net, OnReply(Fault.PARTITION))
    session = await faulty.dial()

    with pytest.raises(PeerUnreachable, match="partitioned"):
        await session.call("echo", b"1", deadline=DEADLINE)

    assert [header for _, _, header in faulty.server.calls] == [b"1"]


async def test_faulty__partition_that_lasts__heals_by_itself(net: Net) -> None:
    faulty = Faulty(net, Partition(timedelta(milliseconds=1)))
    session = await faulty.dial()

    with pytest.raises(PeerUnreachable, match="partitioned"):
        await session.call("echo", b"1", deadline=DEADLINE)
    healed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, healed.set_result, None)
    await healed

    assert (await session.call("echo", b"2", deadline=DEADLINE)).header == b"2"


async def test_faulty__heal_by_script__the_third_try_passes(net: Net) -> None:
    faulty = Faulty(net, Fault.PARTITION, Delay(timedelta(0)), Fault.HEAL)
    session = await faulty.dial()

    for _ in range(2):
        with pytest.raises(PeerUnreachable, match="partitioned"):
            await session.call("echo", b"1", deadline=DEADLINE)

    assert (await session.call("echo", b"2", deadline=DEADLINE)).header == b"2"
    faulty.two.need_all_struck()


async def test_faulty__heal_without_partition__has_not_hit(net: Net) -> None:
    faulty = Faulty(net, Fault.HEAL)
    session = await faulty.dial()

    await session.call("echo", b"1", deadline=DEADLINE)

    with pytest.raises(AssertionError, match=r"HEAL at the 1\. 'echo' .* of 1"):
        faulty.two.need_all_struck()


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


@pytest.mark.parametrize("fault", [Fault.DUPLICATE, Fault.HEAL])
def test_on_reply__what_no_reply_can_do__is_refused(fault: Fault) -> None:
    with pytest.raises(WrongConfiguration):
        OnReply(fault)


async def test_faulty__message_without_a_byte_corrupted__has_not_hit(net: Net) -> None:
    faulty = Faulty(net, Fault.CORRUPT)
    session = await faulty.dial()

    await session.call("echo", b"", deadline=DEADLINE)

    assert list(faulty.two.missed) == [("echo", faulty.one.key, 1)]


async def test_faulty__session_of_the_book__meets_the_same_script(net: Net) -> None:
    faulty = Faulty(net, Fault.DUPLICATE)
    await faulty.dial()

    await faulty.two.sessions[faulty.one.key].call("echo", b"1", deadline=DEADLINE)

    assert len(faulty.server.calls) == 2


async def test_faulty__kind_read_from_the_header__counts_by_kind(net: Net) -> None:
    faulty = Faulty(net, Fault.DUPLICATE, method="seal")
    kinds = FaultyTransport(
        net.peer(3),
        {("seal", faulty.one.key, 2): Fault.DUPLICATE},
        kind_of=lambda _method, header: header.decode(),
    )
    await faulty.dial()
    faulty.one.set_members([kinds.key])
    session = await kinds.dial(faulty.one.key, [str(faulty.address)], deadline=DEADLINE)

    for header in (b"seal", b"step", b"seal", b"seal"):
        await session.call("echo", header, deadline=DEADLINE)

    sent = [header for _, _, header in faulty.server.calls]
    assert sent == [b"seal", b"step", b"seal", b"seal", b"seal"]


async def test_faulty__without_script__is_the_transport_itself(net: Net) -> None:
    faulty = Faulty(net)
    session = await faulty.dial()

    assert session.node == faulty.one.key
    assert not session.closed
    await session.close()
    assert isinstance(await session.wait_closed(), PeerUnreachable)
    await faulty.two.close()
    assert dict(faulty.two.sessions) == {}
