"""Whom a command may be pointed at: nobody, something that is no market, and a real market.

Its chain is in memory.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eth_abi import abi
from starlette.types import ASGIApp

from contracts.terms.digest import keccak
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain
from market.api.app import make_app
from market.bodies.market import NetworkView
from tests.support.databases import new_world
from tests.support.fakes.memory_chain import MemoryChain
from tests.support.history import DOMAIN
from tests.support.market_world import ANCHORER, World
from tests.support.serving import QuietServer, listening, quiet

NOBODY = "http://127.0.0.1:1"
NODE_HASH = Digest(b"\x11" * 32)
"""Of each block of a node that is played, the first one's included."""
HTML = b"<!doctype html><title>Welcome</title><p>It works!"


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """URL of a server that answers everything with this page."""
    with _answering(lambda _: body, "text/html") as url:
        yield url


@contextmanager
def _answering(answer: Callable[[bytes], bytes], kind: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        """Reads the request and answers."""

        def do_GET(self) -> None:
            body = answer(self.rfile.read(int(self.headers.get("content-length", 0))))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            with suppress(ConnectionError):  # a command that ends waits for no answer
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield _url(server.server_port)
        finally:
            server.shutdown()
            thread.join()


WORD = 10**12  # what the node below says of most numbers: enough of everything
_VIEWS = {
    "balances(address)": (WORD, 0),
    "jobs(bytes32)": (WORD, WORD, 0, 1),
    "buckets(bytes32)": (WORD, 1),
    "granted(bytes32,address)": (WORD, 0, 0, 0),
    "bonds(bytes32,address)": (0, 0, 0, 0),
    **{f"{name}()": (10**day,) for day, name in enumerate(("EXECUTE", "ANNOUNCE", "MARGIN"), 3)},
    "TAIL()": (10**7,),
}
"""Views of JobEscrow."""
_WORDS = {bytes(keccak(name.encode())[:4]): words for name, words in _VIEWS.items()}
_MULTICALL = bytes(keccak(b"multicall(bytes[])")[:4])


def _called(data: bytes) -> bytes:
    """What any contract of that chain returns."""
    if data[:4] == _MULTICALL:
        [calls] = abi.decode(["bytes[]"], data[4:])
        return bytes(abi.encode(["bytes[]"], [[_called(call) for call in calls]]))
    words = _WORDS.get(data[:4], (WORD,) * 8)
    return b"".join(word.to_bytes(32, "big") for word in words)


@contextmanager
def wealthy_node(domain: Domain) -> Iterator[str]:
    """URL of a node of a chain on which everybody holds a million tokens.

    In the escrow everybody has as many free, and as high a limit in every job, without a bond.
    """
    block = {"number": "0x1", "hash": "0x" + NODE_HASH.hex(), "timestamp": "0x1"}
    results: dict[str, object] = {
        "eth_chainId": hex(domain.chain_id),
        "eth_blockNumber": "0x1",
        "eth_getBlockByNumber": block,
        "eth_getTransactionCount": "0x0",
        "eth_getBalance": hex(10**18),
    }

    def answer(body: bytes) -> bytes:
        asked = json.loads(body)
        if asked["method"] == "eth_call":
            called = asked["params"][0].get("data") or asked["params"][0]["input"]
            result: object = "0x" + _called(bytes.fromhex(called[2:])).hex()
        else:
            result = results[asked["method"]]
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()

    with _answering(answer, "application/json") as url:
        yield url


class OneEscrow(MemoryChain):
    """A chain in memory that names its node, and the contract under whose domain it is signed."""

    rpc_url = NOBODY

    async def network(self, version: str, now: UnixMillis) -> NetworkView:
        """See `Chain.network`."""
        network = await super().network(version, now)
        genesis = network.genesis if self.rpc_url == NOBODY else NODE_HASH
        return network.model_copy(update={"genesis": genesis, "rpc_url": self.rpc_url})


def empty_world(now: int, rpc_url: str = NOBODY) -> World:
    """A market at Unix second `now`."""
    chain = OneEscrow(DOMAIN, ANCHORER, now=now)
    chain.rpc_url = rpc_url
    return replace(new_world(), chain=chain)


def market_at_url(world: World, app: ASGIApp | None = None) -> AbstractAsyncContextManager[str]:
    """URL of the real API over `world`, served by this loop; its faucet gives nothing."""
    app = app or make_app(replace(world.api(), faucet_grants=0))
    return listening(QuietServer(quiet(app)))


@contextmanager
def market_in_a_thread(world: World, app: ASGIApp | None = None) -> Iterator[str]:
    """`market_at_url` for a test without a loop; the world belongs to the thread meanwhile."""
    ready, over = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with market_at_url(world, app) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        over.set()
        thread.join()
