"""What a call does, over both transports: answers, errors, deadlines, bounds, back-pressure."""

import asyncio
import logging
import struct

import pytest

from contracts.terms import errors
from tests.integration.transport.harness import (
    DEADLINE,
    MemoryNet,
    Net,
    Peer,
    connected,
    greeted,
    key,
    method,
    pair,
    until,
)
from tests.support.patience import patience
from training.transport.failures import reported_error
from training.transport.flow import Window
from training.transport.framing import (
    AbortFrame,
    DataFrame,
    ReplyFrame,
    byte_view,
    call_frames,
    cancel_frame,
    read_frame,
)
from training.transport.port import MIB, Limits
from training.transport.session import FramePipe
from training.transport.wire import Methods


async def test_call__from_inside_a_handler__reaches_the_caller(net: Net) -> None:
    class Asks(Peer):
        async def handle(self, caller, method, header, tensors):  # type: ignore[no-untyped-def]
            reply = await one.sessions[caller].call("echo", b"who?", deadline=DEADLINE)
            return reply.header + b"!", ()

    one, _two, session = await connected(net, server=Asks())

    assert (await session.call("echo", b"", deadline=DEADLINE)).header == b"who?!"


async def test_call__64_mib_tensor__arrives_whole_and_writable(net: Net) -> None:
    _one, _two, session = await connected(net)
    tensor = bytearray(struct.pack("<I", 0xDEADBEEF) * (16 * MIB))

    [back] = (await session.call("echo", b"", [tensor], deadline=DEADLINE)).tensors

    assert back == tensor
    assert not back.readonly
    back[0] ^= 1
    assert back != tensor


async def test_call__many_at_once__each_gets_its_own_answer(net: Net) -> None:
    one, two, there = await connected(net)
    back = one.sessions[two.key]

    replies = await asyncio.gather(
        *(
            session.call("echo", b"%d" % number, [bytes([number]) * 30_000 * number], deadline=30)
            for number in range(30)
            for session in (there, back)
        )
    )

    for position, reply in enumerate(replies):
        number = position // 2
        assert reply.header == b"%d" % number
        assert bytes(reply.tensors[0]) == bytes([number]) * 30_000 * number


@pytest.mark.parametrize(
    ("header", "tensors"),
    [
        (bytes(101), []),
        (b"", [bytes(101)]),
        (b"", [bytes(51), bytes(50)]),
        (b"", [b""] * 3),
    ],
    ids=["header", "tensor", "tensors together", "number of tensors"],
)
async def test_call__over_the_bounds_of_its_method__is_refused_by_either_side(
    net: Net, header: bytes, tensors: list[bytes]
) -> None:
    narrow = Methods([method("echo", header=100, size=100, tensors=2)])
    server = Peer()
    one, two, liberal = await connected(net, server=server, server_methods=narrow)

    with pytest.raises(errors.TooLarge) as there:
        await liberal.call("echo", header, tensors, deadline=DEADLINE)
    with pytest.raises(errors.TooLarge) as here:
        await one.sessions[two.key].call("echo", header, tensors, deadline=DEADLINE)

    assert (there.value.data["peer"], "peer" in here.value.data) == (one.key.hex(), False)
    assert server.calls == []
    assert (await liberal.call("echo", b"alive", deadline=DEADLINE)).header == b"alive"


async def test_call__reply_over_the_bounds_of_the_caller__is_refused(net: Net) -> None:
    class Generous(Peer):
        async def handle(self, caller, method, header, tensors):  # type: ignore[no-untyped-def]
            return b"", [bytes(3 * MIB)] if header else []

    narrow = Methods([method("echo", size=100)])
    _one, _two, session = await connected(net, server=Generous(), client_methods=narrow)

    with pytest.raises(errors.TooLarge):
        await session.call("echo", b"much", deadline=DEADLINE)

    await session.call("echo", b"", deadline=DEADLINE)


async def test_call__own_handler_breaks_a_bound__is_our_bug_and_unavailable_there(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    class Generous(Peer):
        async def handle(self, caller, method, header, tensors):  # type: ignore[no-untyped-def]
            return b"", [bytes(65 * MIB)]

    _one, _two, session = await connected(net, server=Generous())

    with pytest.raises(errors.Unavailable, match="internal"):
        await session.call("echo", b"", deadline=DEADLINE)

    assert "broken invariant" in caplog.text


async def test_call__method_that_nobody_speaks__is_not_found_on_either_side(net: Net) -> None:
    _one, _two, session = await connected(net, server_methods=Methods([]))

    with pytest.raises(errors.NotFound):
        await session.call("nonsense", b"", deadline=DEADLINE)
    with pytest.raises(errors.NotFound):
        await session.call("echo", b"", deadline=DEADLINE)


async def test_call__before_the_other_side_serves__is_unavailable_until_then(net: Net) -> None:
    one, two = net.peer(1), net.peer(2)
    one.set_members([two.key])
    address = await one.serve(Peer(), listen="127.0.0.1:0")
    assert address is not None
    await two.dial(one.key, [address], deadline=DEADLINE)

    with pytest.raises(errors.Unavailable):
        await one.sessions[two.key].call("echo", b"", deadline=DEADLINE)
    await two.serve(Peer())

    assert (await one.sessions[two.key].call("echo", b"now", deadline=DEADLINE)).header == b"now"


# ------------------------------------------------------------------------------------- errors


async def test_call__handler_raises_anything_else__is_logged_and_tells_nothing(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    _one, _two, session = await connected(net, server=Peer(KeyError("secret path")))

    with caplog.at_level(logging.ERROR), pytest.raises(errors.Unavailable) as caught:
        await session.call("fail", b"", deadline=DEADLINE)

    assert caught.value.message == "an internal error"
    assert "secret path" in caplog.text
    assert "secret" not in str(caught.value.data)


# ---------------------------------------------------------------------- deadlines and the end


@pytest.mark.parametrize("is_gone", [False, True], ids=["gives up", "goes away"])
async def test_call__caller_gives_up_or_goes_away__handler_is_cancelled(
    net: Net, is_gone: bool
) -> None:
    server = Peer()
    one, _two, session = await connected(net, server=server)
    call = asyncio.create_task(session.call("wait", b"", deadline=DEADLINE))
    await server.entered.acquire()

    if is_gone:
        await session.close()
    else:
        call.cancel()

    await asyncio.wait_for(server.cancelled.wait(), patience(DEADLINE))
    with pytest.raises(errors.PeerUnreachable if is_gone else asyncio.CancelledError):
        await call
    await until(lambda: bool(one.sessions) != is_gone)


async def test_call__caller_gives_up_in_the_middle_of_a_large_one__session_lives(net: Net) -> None:
    _one, _two, session = await connected(net, server_limits=Limits(max_call_bytes=64 * MIB + 1000))

    for _ in range(3):
        call = asyncio.create_task(session.call("echo", b"", [bytes(64 * MIB)], deadline=30))
        await session.call("echo", b"", deadline=DEADLINE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    last = await session.call("echo", b"", [bytes(64 * MIB)], deadline=DEADLINE)
    assert last.tensors[0].nbytes == 64 * MIB


async def test_call__deadline_passes_at_the_handler__is_answered_by_its_side(net: Net) -> None:
    server = Peer()
    one, _two, address = await pair(net, server=server)
    pipe = await greeted(net, 2, one.key, address)

    await send(pipe, 1, "wait", deadline_ms=20)

    assert await failure(pipe, 1) is errors.DeadlineExceeded
    assert server.cancelled.is_set()


async def test_call__that_never_arrives_whole__expires(net: Net) -> None:
    one, _two, address = await pair(net)
    pipe = await greeted(net, 2, one.key, address)
    frames = call_frames(1, "echo", 20, [memoryview(b""), memoryview(bytes(3 * MIB))])

    await pipe.write(next(frames))

    assert await failure(pipe, 1) is errors.DeadlineExceeded


async def test_call__server_goes_away_in_the_middle__peer_unreachable(net: Net) -> None:
    server = Peer()
    one, two, session = await connected(net, server=server)
    calls = [asyncio.create_task(session.call("wait", b"", deadline=30)) for _ in range(3)]
    await server.entered.acquire()

    await one.close()

    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [errors.PeerUnreachable] * 3
    assert {end.data["node"] for end in ends if isinstance(end, errors.PeerUnreachable)} == {
        one.key.hex()
    }
    assert isinstance(await session.wait_closed(), errors.PeerUnreachable)
    assert session.closed
    assert two.sessions == {}
    with pytest.raises(errors.PeerUnreachable):
        await session.call("echo", b"", deadline=DEADLINE)


# ------------------------------------------------------------------------------ back-pressure


async def test_call__more_than_the_peer_takes__wait_their_turn(net: Net) -> None:
    server = Peer()
    _one, _two, session = await connected(net, server=server, server_limits=Limits(max_calls=2))
    calls = [
        asyncio.create_task(session.call("wait", b"%d" % n, deadline=DEADLINE)) for n in range(6)
    ]
    await server.entered.acquire()
    await server.entered.acquire()

    server.gate.set()

    assert [reply.header for reply in await asyncio.gather(*calls)] == [b"%d" % n for n in range(6)]
    assert server.most_running == 2


async def test_call__more_bytes_than_the_peer_takes__wait_their_turn(net: Net) -> None:
    server = Peer()
    _one, _two, session = await connected(
        net, server=server, server_limits=Limits(max_call_bytes=MIB)
    )
    server.gate.set()

    sizes = [MIB * 6 // 10] * 4 + [MIB // 10] * 10
    await asyncio.gather(
        *(session.call("wait", b"", [bytes(size)], deadline=DEADLINE) for size in sizes)
    )

    assert server.most_running < 10


@pytest.mark.parametrize(
    "limits",
    [
        {"server_limits": Limits(max_call_bytes=MIB)},
        {"client_limits": Limits(max_reply_bytes=MIB)},
        {  # what a caller announces is not for us to hold
            "client_limits": Limits(max_reply_bytes=2**40),
            "server_limits": Limits(max_unsent_bytes=MIB),
        },
    ],
    ids=["call", "reply", "reply that this side keeps"],
)
async def test_call__larger_than_somebody_ever_takes__is_too_large(
    net: Net, limits: dict[str, Limits]
) -> None:
    _one, _two, session = await connected(net, **limits)

    with pytest.raises(errors.TooLarge):
        await session.call("echo", b"", [bytes(MIB + 1)], deadline=DEADLINE)


async def test_call__many_that_may_answer_megabytes__few_are_handled_at_once(net: Net) -> None:
    server = Peer()
    limits = Limits(max_large_replies=2)
    methods = Methods([method("wait"), method("echo", size=MIB)])
    _one, _two, session = await connected(
        net,
        server=server,
        server_limits=limits,
        server_methods=methods,
        client_methods=methods,
    )
    calls = [asyncio.create_task(session.call("wait", b"", deadline=DEADLINE)) for _ in range(6)]
    calls[5].cancel()
    for _ in range(2):
        await server.entered.acquire()

    await session.call("echo", b"small", deadline=DEADLINE)  # is not kept waiting by them
    server.gate.set()
    await asyncio.wait(calls)

    assert [call.exception() for call in calls[:5]] == [None] * 5
    assert server.most_running == 3


@pytest.mark.parametrize(
    ("num_waiting", "deadline"),
    [(0, 0.01), (1, DEADLINE)],
    ids=["no room in time", "too many wait"],
)
async def test_call__no_room_in_time_or_too_many_wait_already__overloaded(
    net: Net, num_waiting: int, deadline: float
) -> None:
    server = Peer()
    _one, _two, session = await connected(
        net,
        server=server,
        server_limits=Limits(max_calls=1),
        client_limits=Limits(max_waiting=1),
    )
    calls = [
        asyncio.create_task(session.call("wait", b"", deadline=DEADLINE))
        for _ in range(1 + num_waiting)
    ]
    await server.entered.acquire()

    with pytest.raises(errors.Overloaded):
        await session.call("echo", b"", deadline=deadline)

    server.gate.set()
    await asyncio.gather(*calls)
    await session.call("echo", b"", deadline=DEADLINE)


async def test_call__peer_ignores_the_bounds__is_answered_overloaded(net: Net) -> None:
    server = Peer()
    one, _two, address = await pair(net, server=server, server_limits=Limits(max_calls=2))
    pipe = await greeted(net, 2, one.key, address)

    for number in (1, 2, 3):
        await send(pipe, number, "wait")

    assert await failure(pipe, 3) is errors.Overloaded
    assert len(server.calls) <= 2


async def test_call__cancelled_by_a_bare_frame__frees_its_place(net: Net) -> None:
    one, _two, address = await pair(net, server_limits=Limits(max_calls=1))
    pipe = await greeted(net, 2, one.key, address)
    await send(pipe, 1, "wait")

    await pipe.write(cancel_frame(1))

    assert await failure(pipe, 1) is errors.Unavailable
    await send(pipe, 2, "echo")
    reply = await next_reply(pipe)
    assert (reply.id, reply.failed) == (2, False)


async def test_call__waiting_for_room_when_the_session_ends__peer_unreachable(net: Net) -> None:
    server = Peer()
    _one, _two, session = await connected(net, server=server, server_limits=Limits(max_calls=1))
    calls = [asyncio.create_task(session.call("wait", b"", deadline=30)) for _ in range(2)]
    await server.entered.acquire()

    await session.close()

    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [errors.PeerUnreachable] * 2


async def test_call__cancelled_while_its_reply_is_on_its_way__the_rest_is_cut_off() -> None:
    net = MemoryNet()
    one, _two, address = await pair(net)
    pipe = await greeted(net, 2, one.key, address)
    for frame in call_frames(1, "echo", 30_000, [byte_view(b""), byte_view(bytes(16 * MIB))]):
        await pipe.write(frame)
    await next_reply(pipe)

    await pipe.write(cancel_frame(1))
    await send(pipe, 2, "echo")

    frames = [read_frame(await pipe.read() or b"")]
    while not isinstance(frames[-1], ReplyFrame):
        frames.append(read_frame(await pipe.read() or b""))
    *data, abort, reply = frames
    assert {type(frame) for frame in data} == {DataFrame}
    assert len(data) < 16
    assert abort == AbortFrame(1)
    assert reply == ReplyFrame(2, False, (4,), memoryview(b"head"))
    await net.close()


async def test_window__room_granted_to_a_waiter_that_leaves__goes_to_the_next() -> None:
    window = Window(max_count=1, max_bytes=10, max_waiting=5)
    await window.acquire(10)
    leaves = asyncio.create_task(window.acquire(10))
    stays = asyncio.create_task(window.acquire(10))
    await asyncio.sleep(0)

    window.release(10)
    leaves.cancel()

    await asyncio.wait_for(stays, patience(DEADLINE))
    assert leaves.cancelled()


async def test_window__large_one_waits__small_ones_behind_do_not_overtake() -> None:
    window = Window(max_count=5, max_bytes=10, max_waiting=5)
    await window.acquire(5)
    large = asyncio.create_task(window.acquire(10))
    small = asyncio.create_task(window.acquire(1))
    await asyncio.sleep(0)
    assert not small.done()

    large.cancel()

    await asyncio.wait_for(small, patience(DEADLINE))


async def send(pipe: FramePipe, number: int, name: str, deadline_ms: int = 30_000) -> None:
    for frame in call_frames(number, name, deadline_ms, [byte_view(b"head")]):
        await pipe.write(frame)


async def next_reply(pipe: FramePipe) -> ReplyFrame:
    data = await pipe.read()
    assert data is not None
    frame = read_frame(data)
    assert isinstance(frame, ReplyFrame)
    return frame


async def failure(pipe: FramePipe, number: int) -> type[errors.TallystickError]:
    """The class of the error that call `number` is answered with."""
    reply = await next_reply(pipe)
    assert (reply.id, reply.failed) == (number, True)
    return type(reported_error(bytes(reply.body), key(1)))
