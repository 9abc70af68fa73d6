"""What TLS and the leaf check refuse, over real connections."""

import asyncio
import logging
import os
import signal
import sys

import grpc
import pytest

from contracts.terms.errors import BadSignature, Forbidden, InvariantBroken, PeerUnreachable
from tests.integration.transport.harness import (
    ANY_PORT,
    DEADLINE,
    METHODS,
    GrpcNet,
    Peer,
    key,
    pair,
    private_key,
)
from tests.support.patience import patience
from training.transport import grpc_adapter
from training.transport.failures import reported_error
from training.transport.framing import RefuseFrame, hello_frame, read_frame
from training.transport.tls import SERVER_NAME, issue_leaf, trust_anchor


async def test_leaf__names_another_member__is_refused_with_bad_signature(
    grpc_net: GrpcNet, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, address = await pair(grpc_net)
    forged = issue_leaf(private_key(3), names=two.key)
    member = grpc_net.peer(3, leaf=forged)
    one.set_members([two.key, member.key])

    with caplog.at_level(logging.WARNING), pytest.raises(BadSignature, match="did not sign"):
        await member.dial(one.key, [address], deadline=DEADLINE)

    assert dict(one.sessions) == {}
    assert two.key.hex()[:16] in caplog.text


async def test_leaf__of_a_stranger_that_names_a_member__fails_in_tls(grpc_net: GrpcNet) -> None:
    one, two, address = await pair(grpc_net)
    stranger = grpc_net.peer(3, leaf=issue_leaf(private_key(3), names=two.key))

    with pytest.raises(PeerUnreachable):
        await stranger.dial(one.key, [address], deadline=DEADLINE)


async def test_leaf__of_another_listener_that_names_the_wanted__fails_the_pin(
    grpc_net: GrpcNet,
) -> None:
    liar = grpc_net.peer(3, leaf=issue_leaf(private_key(3), names=key(1)))
    two = grpc_net.peer(2)
    liar.set_members([two.key])
    address = await liar.serve(Peer(), listen=ANY_PORT)
    assert address is not None

    with pytest.raises(PeerUnreachable):
        await two.dial(key(1), [address], deadline=DEADLINE)


async def test_client__without_certificate__is_refused(grpc_net: GrpcNet) -> None:
    one, _two, address = await pair(grpc_net)
    pipe = grpc_net.raw_with(trust_anchor(one.key), None, address)

    with pytest.raises(PeerUnreachable):
        await pipe.read()

    assert dict(one.sessions) == {}


async def test_client__without_tls__is_refused(grpc_net: GrpcNet) -> None:
    one, _two, address = await pair(grpc_net)
    async with grpc.aio.insecure_channel(address) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream("/tallystick.Peer/Session")
        call = method()

        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()

    assert dict(one.sessions) == {}


async def test_members__removed__may_open_no_stream_on_its_old_connection(
    grpc_net: GrpcNet,
) -> None:
    one, _two, address = await pair(grpc_net)
    leaf = issue_leaf(private_key(2))
    credentials = grpc.ssl_channel_credentials(
        trust_anchor(one.key), leaf.private_key, leaf.certificate
    )
    options = [("grpc.ssl_target_name_override", SERVER_NAME)]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream("/tallystick.Peer/Session")
        await method().write(hello_frame(b""))  # the connection is up, and TLS is content
        one.set_members([])

        stream = method()
        await stream.write(hello_frame(b""))
        answer = await stream.read()

    assert isinstance(answer, bytes)
    refusal = read_frame(answer)
    assert isinstance(refusal, RefuseFrame)
    assert type(reported_error(refusal.payload, one.key)) is Forbidden


async def test_dial__proxy_in_the_environment__is_ignored(
    grpc_net: GrpcNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, address = await pair(grpc_net)
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    await two.dial(one.key, [address], deadline=DEADLINE)


@pytest.mark.parametrize("hint", ["unix:/run/other.sock", "dns:///host:1", "host:1/path", "a@b:1"])
async def test_dial__hint_that_is_no_address__is_passed_over(grpc_net: GrpcNet, hint: str) -> None:
    one, two, address = await pair(grpc_net)

    with pytest.raises(PeerUnreachable, match="no host:port"):
        await two.dial(one.key, [hint], deadline=DEADLINE)
    await two.dial(one.key, [hint, address], deadline=DEADLINE)


async def test_transport__in_a_forked_process__refuses(
    grpc_net: GrpcNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, address = await pair(grpc_net)
    monkeypatch.setattr(grpc_adapter, "_pid_of_grpc", os.getpid() + 1)

    with pytest.raises(InvariantBroken, match="fork"):
        await two.dial(one.key, [address], deadline=DEADLINE)


SERVER = """
import asyncio, sys
from tests.integration.transport.harness import ANY_PORT, METHODS, Peer, key, private_key
from training.transport.grpc_adapter import GrpcTransport

async def main():
    transport = GrpcTransport(private_key(1), METHODS)
    transport.set_members([key(2)])
    print(await transport.serve(Peer(), listen=ANY_PORT), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_call__server_process_is_killed__peer_unreachable_at_once() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE
    )
    two = grpc_adapter.GrpcTransport(private_key(2), METHODS)
    try:
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        session = await two.dial(key(1), [address], deadline=DEADLINE)
        call = asyncio.create_task(session.call("wait", b"", deadline=DEADLINE))
        await session.call("echo", b"", deadline=DEADLINE)

        process.send_signal(signal.SIGKILL)

        async with asyncio.timeout(patience(5)):  # the socket's end tells, before keep-alive does
            with pytest.raises(PeerUnreachable):
                await call
        with pytest.raises(PeerUnreachable):
            await two.dial(key(1), [address], deadline=DEADLINE)
    finally:
        await two.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
