"""Frames that no honest peer sends: the session ends with a reason, everybody else's lives."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.terms import errors
from contracts.terms.ids import SessionKey
from tests.integration.transport.harness import (
    DEADLINE,
    NOW,
    GrpcNet,
    MemoryNet,
    Net,
    Peer,
    greeted,
    key,
    pair,
    until,
)
from training.transport.failures import failure_bytes, reported_error
from training.transport.framing import (
    CallFrame,
    CancelFrame,
    Frame,
    Kind,
    RefuseFrame,
    ReplyFrame,
    abort_frame,
    call_frames,
    cancel_frame,
    hello_frame,
    read_frame,
    refuse_frame,
    reply_frames,
)
from training.transport.port import MIB, Limits, Reply
from training.transport.session import FramePipe
from training.transport.wire import Hello

HEAD = memoryview(b"head")
CALL = next(call_frames(1, "wait", 30_000, [HEAD]))
HALF_A_CALL = next(call_frames(1, "echo", 30_000, [HEAD, memoryview(bytes(2 * MIB))]))
DATA = bytes([Kind.DATA, 0, 0, 0, 0, 0, 0, 0]) + (1).to_bytes(8, "big")


async def refusal(pipe: FramePipe) -> errors.TallystickError:
    """Why the other side ends the session; skips what it sends before."""
    while (data := await asyncio.wait_for(pipe.read(), DEADLINE)) is not None:
        frame = read_frame(data)
        if isinstance(frame, RefuseFrame):
            with suppress(errors.PeerUnreachable):  # our last frame may not have got out
                assert await asyncio.wait_for(pipe.read(), DEADLINE) is None
            return reported_error(frame.payload, key(1))
    raise AssertionError("it ended without a reason")


def hello(**changed: object) -> bytes:
    """A greeting of peer 2, or nearly."""
    fields = {
        "key": key(2),
        "at": NOW,
        "max_calls": 8,
        "max_call_bytes": MIB,
        "max_reply_bytes": MIB,
    }
    return hello_frame(Hello.model_construct(**{**fields, **changed}).encoded())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (CALL, errors.Malformed),
        (b"\x63", errors.Malformed),
        (hello_frame(b"\xff"), errors.Malformed),
        (hello(max_calls=0), errors.Malformed),
        (hello(kind="hello.v9"), errors.UnknownVersion),
        (hello(key=key(3)), errors.Forbidden),
        (hello_frame(bytes(2000)), errors.TooLarge),
    ],
    ids=["no hello", "no frame", "no msgpack", "no bound", "version", "other name", "too large"],
)
async def test_greeting__wrong__is_refused_with_the_reason(
    net: Net, first: bytes, error: type[errors.TallystickError]
) -> None:
    one, _two, address = await pair(net)
    pipe = await net.raw(2, one.key, address)

    await pipe.write(first)

    assert type(await refusal(pipe)) is error
    assert one.sessions == {}


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x00"],
        [b"\x03"],
        [hello()],
        [CALL, CALL],
        [CALL, DATA + b"x"],
        [HALF_A_CALL, DATA + bytes(MIB - 16), DATA + bytes(MIB - 16)],
        [next(reply_frames(7, [HEAD]))],
        [abort_frame(7)],
        [DATA[:1] + b"\x01" + DATA[2:] + b"x"],
        [CALL[:-1] + b"\xff\xff"],
    ],
    ids=[
        "kind 0",
        "short",
        "second hello",
        "one number twice",
        "data after the end",
        "more data than announced",
        "reply to no call",
        "abort of no call",
        "data of no reply",
        "more than announced at once",
    ],
)
async def test_frames__against_the_rules__end_the_session_with_the_reason(
    net: Net, frames: list[bytes]
) -> None:
    one, two, address = await pair(net)
    honest = await two.dial(one.key, [address], deadline=DEADLINE)
    pipe = await greeted(net, 2, one.key, address)
    reason = asyncio.create_task(refusal(pipe))  # as a session: it reads while it writes

    with suppress(errors.PeerUnreachable):  # the other side may end it in the middle of a write
        for frame in frames:
            await pipe.write(frame)

    assert type(await reason) is errors.Malformed
    assert (await honest.call("echo", b"alive", deadline=DEADLINE)).header == b"alive"


@pytest.mark.parametrize("frame", [cancel_frame(7), DATA + b"late"], ids=["cancel", "data"])
async def test_frames__that_come_too_late__are_ignored(net: Net, frame: bytes) -> None:
    one, _two, address = await pair(net)
    pipe = await greeted(net, 2, one.key, address)

    await pipe.write(frame)
    await pipe.write(next(call_frames(8, "echo", 30_000, [HEAD])))

    answer = await pipe.read()
    assert answer is not None
    assert answer.endswith(b"head")


async def test_connection__that_says_nothing__is_ended(net: Net) -> None:
    limits = Limits(handshake=timedelta(milliseconds=20))
    one, _two, address = await pair(net, server_limits=limits)
    pipe = await net.raw(2, one.key, address)

    assert await asyncio.wait_for(pipe.read(), DEADLINE) is None
    assert one.sessions == {}


async def test_session__that_reads_nothing__is_ended_before_memory_fills() -> None:
    net = MemoryNet()  # loopback buffers so much that it takes a while
    one, _two, address = await pair(net)
    pipe = await greeted(net, 2, one.key, address)
    refused = next(call_frames(1, "none", 30_000, [HEAD]))

    async def flood() -> None:
        while True:
            await pipe.write(refused)

    flooding = asyncio.create_task(flood())
    await until(lambda: one.sessions == {})

    with pytest.raises(errors.PeerUnreachable):
        await flooding
    await net.close()


# --------------------------------------------------------------- a peer that answers wrongly


async def asked(net: Net, limits: Limits | None = None) -> tuple[FramePipe, asyncio.Task[Reply]]:
    """A bare peer that has just been asked, and the call that waits for it."""
    one, two, address = await pair(net, server_limits=limits)
    pipe = await greeted(net, 2, one.key, address)
    call = asyncio.create_task(one.sessions[two.key].call("echo", b"head", deadline=DEADLINE))
    data = await pipe.read()
    assert data is not None
    assert isinstance(read_frame(data), CallFrame)
    return pipe, call


async def test_reply__more_than_we_said_we_take__ends_the_session(net: Net) -> None:
    pipe, call = await asked(net, Limits(max_reply_bytes=MIB))

    await pipe.write(next(reply_frames(1, [HEAD, memoryview(bytes(2 * MIB))])))

    assert type(await refusal(pipe)) is errors.TooLarge
    with pytest.raises(errors.PeerUnreachable):
        await call


async def test_reply__cut_off__deadline_exceeded(net: Net) -> None:
    pipe, call = await asked(net)

    await pipe.write(next(reply_frames(1, [HEAD, memoryview(bytes(2 * MIB))])))
    await pipe.write(abort_frame(1))

    with pytest.raises(errors.DeadlineExceeded, match="cut off"):
        await call


@pytest.mark.parametrize("parts", [[bytes(20_000)], [b"", b""]], ids=["too long", "with a tensor"])
async def test_reply__failure_out_of_bounds__too_large(net: Net, parts: list[bytes]) -> None:
    pipe, call = await asked(net)

    await pipe.write(next(reply_frames(1, [memoryview(part) for part in parts], failed=True)))

    with pytest.raises(errors.TooLarge):
        await call


async def test_refusal__in_the_middle__callers_hear_the_reason(net: Net) -> None:
    pipe, call = await asked(net)

    await pipe.write(refuse_frame(failure_bytes(errors.Malformed("you babble"))))

    with pytest.raises(errors.PeerUnreachable, match="you babble"):
        await call


async def test_reply__after_its_caller_left__is_thrown_away(net: Net) -> None:
    pipe, call = await asked(net)
    whole = list(reply_frames(1, [HEAD, memoryview(bytes(2 * MIB))]))
    await pipe.write(whole[0])

    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    for frame in whole[1:]:
        await pipe.write(frame)
    await pipe.write(next(call_frames(5, "echo", 30_000, [HEAD])))

    kinds: list[Frame] = []
    while not kinds or not isinstance(kinds[-1], ReplyFrame):
        data = await pipe.read()
        assert data is not None
        kinds.append(read_frame(data))
    assert [type(kind) for kind in kinds] == [CancelFrame, ReplyFrame]


numbers = st.integers(0, 3)
buffers = st.binary(max_size=40).map(lambda data: memoryview(data))
parts = st.lists(buffers, min_size=1, max_size=4)
names = st.sampled_from(["echo", "wait", "fail", "none", ""])
well_formed = st.one_of(
    st.builds(lambda *a: next(call_frames(*a)), numbers, names, st.integers(0, 50), parts),
    st.builds(lambda n, p, f: next(reply_frames(n, p, failed=f)), numbers, parts, st.booleans()),
    st.builds(cancel_frame, numbers),
    st.builds(abort_frame, numbers),
    st.builds(lambda n, b: DATA[:8] + n.to_bytes(8, "big") + b, numbers, st.binary(max_size=40)),
)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A frame with one byte changed, cut, or lengthened."""
    frame = bytearray(draw(well_formed))
    frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))]) + draw(st.binary(max_size=20))


any_frame = st.one_of(well_formed, bent(), st.binary(max_size=60))


@pytest.mark.parametrize("kind", [MemoryNet, GrpcNet], ids=["memory", "grpc"])
def test_frames__any_bytes_at_all__never_hurt_the_listener(
    kind: type[MemoryNet] | type[GrpcNet], caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner() as runner:
        net: Net = kind()
        one, two, address = runner.run(pair(net, server=Peer()))
        honest = runner.run(two.dial(one.key, [address], deadline=DEADLINE))

        @given(st.lists(any_frame, max_size=8))
        def one_listener_survives(frames: list[bytes]) -> None:
            caplog.clear()
            runner.run(_send_all(net, one.key, address, frames))
            alive = runner.run(honest.call("echo", b"alive", deadline=DEADLINE))
            assert alive.header == b"alive"
            broken = [record for record in caplog.records if record.exc_info]
            assert all("nothing to fail" in str(record.exc_info) for record in broken)

        try:
            one_listener_survives()
        finally:
            runner.run(net.close())


async def _send_all(net: Net, node: SessionKey, address: str, frames: list[bytes]) -> None:
    pipe = await greeted(net, 2, node, address)
    drain = asyncio.create_task(_drain(pipe))
    with suppress(errors.PeerUnreachable):  # the session has ended, as it may
        for frame in frames:
            await pipe.write(frame)
    drain.cancel()
    await asyncio.gather(drain, return_exceptions=True)
    pipe.close()


async def _drain(pipe: FramePipe) -> None:
    while await pipe.read() is not None:
        pass
