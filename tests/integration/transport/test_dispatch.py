"""Typed calls end to end: `ask` on one side, `Dispatcher` on the other, over both transports."""

import pytest

from contracts.terms.encoding import encode
from contracts.terms.errors import Expired, Forbidden, Malformed, NotFound, UnknownVersion
from contracts.terms.ids import SessionKey
from contracts.terms.moments import UnixMillis
from tests.integration.transport.harness import (
    ANY_PORT,
    DEADLINE,
    METHODS,
    NOW,
    Net,
    Note,
    key,
    method,
)
from training.transport.dispatch import Dispatcher
from training.transport.port import Session
from training.transport.wire import PING, Answered, AnyMethod, Method, Methods, Ping, Question, ask

SHOUT: Method[Note, Note] = method("shout")
ALL = Methods([PING, SHOUT, *METHODS.values()])


async def shout(asked: Question[Note]) -> Answered[Note]:
    """The text in capitals, the tensors backwards."""
    return Note(text=asked.request.text.upper()), asked.tensors[::-1]


def only_peer_two(caller: SessionKey, method: AnyMethod) -> None:
    """Peer 2 may shout, all may ping."""
    if method is SHOUT and caller != key(2):
        raise Forbidden(f"{method.name} is not for {caller.hex()[:16]}")


async def served(net: Net, number: int = 2) -> Session:
    """A session from peer `number` to a dispatcher that serves SHOUT."""
    dispatcher = Dispatcher(authorize=only_peer_two, clock=lambda: NOW)
    dispatcher.on(SHOUT, shout)
    one, other = net.peer(1, methods=ALL), net.peer(number, methods=ALL)
    one.set_members([other.key])
    address = await one.serve(dispatcher, listen=ANY_PORT)
    assert address is not None
    return await other.dial(one.key, [address], deadline=DEADLINE)


async def test_ask__served_method__answers_typed(net: Net) -> None:
    session = await served(net)

    answer, tensors = await ask(session, SHOUT, Note(text="hey"), [b"1", b"2"], deadline=DEADLINE)

    assert answer == Note(text="HEY")
    assert [bytes(tensor) for tensor in tensors] == [b"2", b"1"]


async def test_ask__ping_from_another_time__expired(net: Net) -> None:
    session = await served(net)

    with pytest.raises(Expired):
        await ask(session, PING, Ping(at=UnixMillis(NOW + 121_000)), deadline=DEADLINE)


async def test_ask__caller_who_may_not__forbidden(net: Net) -> None:
    session = await served(net, number=3)

    with pytest.raises(Forbidden):
        await ask(session, SHOUT, Note(text="hey"), deadline=DEADLINE)
    await ask(session, PING, Ping(at=NOW), deadline=DEADLINE)


async def test_ask__method_in_the_registry_but_not_served__not_found(net: Net) -> None:
    session = await served(net)

    with pytest.raises(NotFound):
        await session.call("echo", b"", deadline=DEADLINE)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (b"", Malformed),
        (b"\xc1", Malformed),
        (b"\x93\x01\x02\x03", Malformed),
        (Ping(at=NOW).encoded(), UnknownVersion),
        (encode({"kind": "note.v1", "text": 5}), Malformed),
    ],
)
async def test_dispatch__header_that_is_no_request__typed_refusal(
    net: Net, header: bytes, error: type[Exception]
) -> None:
    session = await served(net)

    with pytest.raises(error):
        await session.call("shout", header, deadline=DEADLINE)
