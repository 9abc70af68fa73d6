"""One network of test peers over either transport, and what their handlers do.

Peers are numbered; peer n's session key is made from its number, so a test names what matters.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typing_extensions import Buffer

from contracts.terms.ids import SessionKey
from contracts.terms.moments import UnixMillis
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.patience import patience
from training.transport.framing import HelloFrame, hello_frame, read_frame
from training.transport.grpc_adapter import GrpcTransport, _DialledPipe
from training.transport.port import MIB, Limits, Session, Transport
from training.transport.session import FramePipe
from training.transport.tls import Leaf, issue_leaf, session_key_of, trust_anchor
from training.transport.wire import Hello, Method, Methods, WireMessage

DEADLINE = 30.0  # seconds that no passing test waits for
NOW = UnixMillis(1_800_000_000_000)


class Note(WireMessage):
    """Any text."""

    kind: Literal["note.v1"] = "note.v1"
    text: str


def method(name: str, *, header: int = 1000, tensors: int = 4, size: int = 64 * MIB) -> Method:  # type: ignore[type-arg]  # notes both ways
    """A method with the same bounds in both directions."""
    return Method(
        name,
        Note,
        Note,
        max_header_bytes=header,
        max_tensors=tensors,
        max_tensor_bytes=size,
        max_reply_header_bytes=header,
        max_reply_tensors=tensors,
        max_reply_tensor_bytes=size,
    )


METHODS = Methods([method("echo"), method("wait"), method("fail")])


def private_key(number: int) -> Ed25519PrivateKey:
    """Peer `number`'s session key."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))


def key(number: int) -> SessionKey:
    """Who peer `number` is."""
    return session_key_of(private_key(number))


class Peer:
    """A handler: `echo` returns what it gets, `wait` waits for `gate`, `fail` raises `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.error = error or ValueError("nothing to fail with")
        self.answer: bytes | None = None
        """What `echo` returns beside the header, instead of what it got."""
        self.calls: list[tuple[SessionKey, str, bytes]] = []
        self.running = 0
        self.most_running = 0
        self.entered = asyncio.Semaphore(0)
        self.cancelled = asyncio.Event()

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """Answer by the method's name."""
        self.calls.append((caller, method, header))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.entered.release()
        try:
            if method == "wait":
                await self.gate.wait()
            if method == "fail":
                raise self.error
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
        return header, tensors if self.answer is None else (self.answer,)


ANY_PORT = "127.0.0.1:0"
USUAL: dict[str, Any] = {"clock": lambda: NOW}


class MemoryNet:
    """Peers in memory."""

    def __init__(self) -> None:
        self._network = MemoryNetwork()
        self._made: list[Transport] = []

    def peer(self, number: int, *, methods: Methods = METHODS, **changed: Any) -> Transport:
        """Peer `number`, which neither serves nor listens yet; `changed`: as its class takes it."""
        made = MemoryTransport(self._network, key(number), methods, **(USUAL | changed))
        self._made.append(made)
        return made

    async def raw(self, number: int, node: SessionKey, address: str) -> FramePipe:
        """A bare stream as peer `number`, for frames that no transport would send."""
        there = self._network.find(address)
        assert there is not None
        return there.open_pipe(key(number))

    async def close(self) -> None:
        """End everything."""
        for made in self._made:
            await made.close()


class GrpcNet:
    """Peers over loopback."""

    def __init__(self) -> None:
        self._made: list[GrpcTransport] = []
        self._pipes: list[_DialledPipe] = []

    def peer(self, number: int, *, methods: Methods = METHODS, **changed: Any) -> Transport:
        """See `MemoryNet.peer`."""
        made = GrpcTransport(private_key(number), methods, **(USUAL | changed))
        self._made.append(made)
        return made

    async def raw(self, number: int, node: SessionKey, address: str) -> FramePipe:
        """See `MemoryNet.raw`."""
        leaf = issue_leaf(private_key(number))
        return self.raw_with(trust_anchor(node), leaf, address)

    def raw_with(self, anchor: bytes, leaf: Leaf | None, address: str) -> _DialledPipe:
        """A bare stream with any certificate or none."""
        private, certificate = (leaf.private_key, leaf.certificate) if leaf else (None, None)
        credentials = grpc.ssl_channel_credentials(anchor, private, certificate)
        pipe = _DialledPipe(address, credentials, lambda _: None)
        self._pipes.append(pipe)
        return pipe

    async def close(self) -> None:
        """See `MemoryNet.close`."""
        for pipe in self._pipes:
            await pipe.closed()
        for made in self._made:
            await made.close()


Net = MemoryNet | GrpcNet


async def pair(
    net: Net,
    *,
    server: Peer | None = None,
    client: Peer | None = None,
    server_limits: Limits | None = None,
    client_methods: Methods = METHODS,
    server_methods: Methods = METHODS,
    client_limits: Limits | None = None,
) -> tuple[Transport, Transport, str]:
    """Peer 1 listening for peer 2, which serves too; with peer 1's address."""
    one = net.peer(1, limits=server_limits, methods=server_methods)
    two = net.peer(2, methods=client_methods, limits=client_limits)
    one.set_members([two.key])
    address = await one.serve(server or Peer(), listen=ANY_PORT)
    await two.serve(client or Peer())
    assert address is not None
    return one, two, address


async def connected(net: Net, **changed: Any) -> tuple[Transport, Transport, Session]:
    """Both of `pair`, and peer 2's session with peer 1."""
    one, two, address = await pair(net, **changed)
    return one, two, await two.dial(one.key, [address], deadline=DEADLINE)


async def greeted(net: Net, number: int, node: SessionKey, address: str) -> FramePipe:
    """A bare stream after both greetings."""
    pipe = await net.raw(number, node, address)
    hello = Hello(
        key=key(number), at=NOW, max_calls=8, max_call_bytes=MIB, max_reply_bytes=64 * MIB
    )
    await pipe.write(hello_frame(hello.encoded()))
    answer = await pipe.read()
    assert answer is not None
    assert isinstance(read_frame(answer), HelloFrame)
    return pipe


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(patience(DEADLINE)):
        while not condition():
            await asyncio.sleep(0)
