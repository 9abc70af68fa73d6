"""How fast is a call of one tensor, beside the same bytes over bare gRPC and over asyncio TLS?

Two processes over loopback, mutual TLS with the same certificates, one call at a time; each figure
is the best of several rounds, so that a busy machine lowers it least. Prints one JSON object.
Run: python -m tests.benchmarks.transport
"""

import asyncio
import json
import platform
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typing_extensions import Buffer

from contracts.terms.ids import SessionKey
from training.transport.grpc_adapter import GrpcTransport
from training.transport.port import MIB
from training.transport.tls import SERVER_NAME, Leaf, issue_leaf, session_key_of, trust_anchor
from training.transport.wire import Method, Methods, WireMessage

SERVER_KEY, CLIENT_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
SERVER, CLIENT = session_key_of(SERVER_KEY), session_key_of(CLIENT_KEY)
ROUNDS, BYTES_A_ROUND = 5, 128 * MIB
DEADLINE = 60.0  # seconds
LENGTH = struct.Struct("!Q")


class Empty(WireMessage):
    """Nothing but its kind."""

    kind: Literal["empty.v1"] = "empty.v1"


METHODS = Methods(
    [
        Method("sink", Empty, Empty, max_tensors=1, max_tensor_bytes=64 * MIB),
    ]
)
OPTIONS = [
    ("grpc.max_receive_message_length", 65 * MIB),
    ("grpc.max_send_message_length", 65 * MIB),
    ("grpc.enable_http_proxy", 0),
]


class Sink:
    """Takes a tensor, answers nothing."""

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """See `port.Handler`."""
        return b"", ()


def tls_context(side: ssl.Purpose, leaf: Leaf, peer: SessionKey) -> ssl.SSLContext:
    """Mutual TLS for asyncio with our certificates."""
    context = ssl.create_default_context(side, cadata=trust_anchor(peer).decode())
    context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(leaf.private_key + leaf.certificate)
        context.load_cert_chain(file.name)
    return context


async def drain_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each length-prefixed message with one byte."""
    try:
        while True:
            [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            await reader.readexactly(size)
            writer.write(b"k")
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def unary(request: bytes, _context: object) -> bytes:
    """The bare gRPC method."""
    return b"k"


async def serve() -> None:
    """Listen three times; print the addresses."""
    transport = GrpcTransport(SERVER_KEY, METHODS)
    transport.set_members([CLIENT])
    address = await transport.serve(Sink(), listen="127.0.0.1:0")
    leaf = issue_leaf(SERVER_KEY)
    bare = grpc.aio.server(options=OPTIONS)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(unary)
    bare.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bare", {"Sink": handler}),)
    )
    credentials = grpc.ssl_server_credentials(
        [(leaf.private_key, leaf.certificate)], trust_anchor(CLIENT), require_client_auth=True
    )
    port = bare.add_secure_port("127.0.0.1:0", credentials)
    await bare.start()
    context = tls_context(ssl.Purpose.CLIENT_AUTH, leaf, CLIENT)
    streams = await asyncio.start_server(drain_stream, "127.0.0.1", 0, ssl=context, limit=MIB)
    stream_port = streams.sockets[0].getsockname()[1]
    print(json.dumps([address, f"127.0.0.1:{port}", stream_port]), flush=True)
    await asyncio.Event().wait()


Send = Callable[[bytes], Awaitable[object]]


async def megabytes_per_second(send: Send, size: int) -> float:
    """Best round of sending `size` bytes again and again."""
    data, calls = bytes(size), BYTES_A_ROUND // size
    await send(data)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            await send(data)
        best = min(best, time.perf_counter() - start)
    return calls * size / best / 1e6


async def measure(ours: str, bare: str, stream_port: int) -> dict[str, dict[str, float]]:
    """MB/s by size and way."""
    leaf = issue_leaf(CLIENT_KEY)
    transport = GrpcTransport(CLIENT_KEY, METHODS)
    session = await transport.dial(SERVER, [ours], deadline=DEADLINE)
    credentials = grpc.ssl_channel_credentials(
        trust_anchor(SERVER), leaf.private_key, leaf.certificate
    )
    options = [*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
    channel = grpc.aio.secure_channel(bare, credentials, options=options)
    sink: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/bare/Sink")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        stream_port,
        ssl=tls_context(ssl.Purpose.SERVER_AUTH, leaf, SERVER),
        server_hostname=SERVER_NAME,
    )

    async def call(data: bytes) -> object:
        return await session.call("sink", b"", [data], deadline=DEADLINE)

    async def stream(data: bytes) -> object:
        writer.writelines([LENGTH.pack(len(data)), data])
        await writer.drain()
        return await reader.readexactly(1)

    async def bare_call(data: bytes) -> object:
        return await sink(data)

    ways: dict[str, Send] = {"transport": call, "grpc": bare_call, "asyncio": stream}
    found: dict[str, dict[str, float]] = {}
    for size in (1 * MIB, 16 * MIB):
        speeds = {way: await megabytes_per_second(send, size) for way, send in ways.items()}
        speeds["transport/grpc"] = speeds["transport"] / speeds["grpc"]
        speeds["transport/asyncio"] = speeds["transport"] / speeds["asyncio"]
        found[f"{size // MIB} MiB"] = {way: round(speed, 2) for way, speed in speeds.items()}
    started = time.perf_counter()
    for _ in range(500):
        await session.call("sink", b"", deadline=DEADLINE)
    found["empty call"] = {"ms": round((time.perf_counter() - started) * 2, 3)}
    writer.close()
    await channel.close()
    await transport.close()
    return found


def main() -> None:
    """Measure against a server in another process."""
    command = [sys.executable, "-m", "tests.benchmarks.transport", "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            addresses = json.loads(server.stdout.readline())
            found = asyncio.run(measure(*addresses))
        finally:
            server.kill()
    about = {
        "grpcio": version("grpcio"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps({"MB/s": found, **about}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        main()
