"""How fast is a call of one tensor, beside the same bytes over bare gRPC?

Two processes over loopback, mutual TLS with the same certificates, one call at a time; each figure
is the best of several rounds, so that a busy machine lowers it least. Prints one JSON object.
Run: python -m bench.transport [--quick]
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Literal

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typing_extensions import Buffer

from bench.measuring import about, limit, parsed, parser_of
from contracts.terms.ids import SessionKey
from training.transport.grpc_adapter import GrpcTransport
from training.transport.port import MIB
from training.transport.tls import SERVER_NAME, issue_leaf, session_key_of, trust_anchor
from training.transport.wire import Method, Methods, WireMessage

SERVER_KEY, CLIENT_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
SERVER, CLIENT = session_key_of(SERVER_KEY), session_key_of(CLIENT_KEY)
BYTES_A_ROUND = 128 * MIB
DEADLINE = 60.0  # seconds


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


async def unary(request: bytes, _context: object) -> bytes:
    """The bare gRPC method."""
    return b"k"


async def serve() -> None:
    """Listen twice; print the addresses."""
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
    print(json.dumps([address, f"127.0.0.1:{port}"]), flush=True)
    await asyncio.Event().wait()


Figures = dict[str, dict[str, float]]
Send = Callable[[bytes], Awaitable[object]]


async def megabytes_per_second(send: Send, size: int, rounds: int) -> float:
    """Best round of sending `size` bytes again and again."""
    data, calls = bytes(size), BYTES_A_ROUND // size
    await send(data)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            await send(data)
        best = min(best, time.perf_counter() - start)
    return calls * size / best / 1e6


async def measure(ours: str, bare: str, rounds: int) -> dict[str, dict[str, float]]:
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

    async def call(data: bytes) -> object:
        return await session.call("sink", b"", [data], deadline=DEADLINE)

    async def bare_call(data: bytes) -> object:
        return await sink(data)

    ways: dict[str, Send] = {"transport": call, "grpc": bare_call}
    found: Figures = {}
    for size in (1 * MIB, 16 * MIB):
        speeds = {way: await megabytes_per_second(send, size, rounds) for way, send in ways.items()}
        speeds["transport/grpc"] = speeds["transport"] / speeds["grpc"]
        found[f"{size // MIB} MiB"] = {way: round(speed, 2) for way, speed in speeds.items()}
    started = time.perf_counter()
    for _ in range(500):
        await session.call("sink", b"", deadline=DEADLINE)
    found["empty call"] = {"ms": round((time.perf_counter() - started) * 2, 3)}
    await channel.close()
    await transport.close()
    return found


def main() -> None:
    """Measure against a server in another process."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parsed(parser, minutes=10, rounds=1)
    if options.serve:
        asyncio.run(serve())
        return
    command = [sys.executable, "-m", "bench.transport", "--serve"]
    with (
        limit(options.minutes, "transport"),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            ours, bare = json.loads(server.stdout.readline())
            found = asyncio.run(measure(ours, bare, options.rounds))
        finally:
            server.kill()
    told = about(grpcio=version("grpcio"), rounds=options.rounds)
    print(json.dumps({"MB/s": found, **told}, indent=1))


if __name__ == "__main__":
    main()
