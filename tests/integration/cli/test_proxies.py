"""All that speak HTTP ask the same proxy, a real one, and say which it was when it fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from contracts.chain.connection import ChainConnection
from contracts.json_rpc import JsonRpc
from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, TallystickError
from market.bodies.routes import GET_NETWORK
from tallystick.provider.blobs import MarketBlobs
from tallystick.sdk.client import MarketClient
from tallystick.up import json_rpc
from tests.integration.bad_input.servers import empty_world, market_in_a_thread, wealthy_node
from tests.integration.bad_input.verbs import call, complaint
from tests.support.history import DOMAIN
from tests.support.logging_proxy import Proxy, logging_proxy

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class World(NamedTuple):
    """A market and a node on loopback; the proxy calls them `market.example`, `node.example`."""

    market: str
    node: str
    proxy: Proxy


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    log = tmp_path_factory.mktemp("proxy") / "log"
    with (
        market_in_a_thread(empty_world(int(time.time()))) as market,
        wealthy_node(DOMAIN) as node,
        logging_proxy(log, market=market, node=node) as proxy,
    ):
        yield World(market, node, proxy)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def ask_market(url: str, _: Path) -> None:
    async with MarketClient(url) as client:
        await client.call(GET_NETWORK)


async def ask_blobs(url: str, folder: Path) -> None:
    def ask() -> None:
        blobs = MarketBlobs(url, folder)
        with pytest.raises(NotFound):
            blobs._get(blob_digest(b"none"), None)  # `fetch` would wait for a market to come back
        blobs.close()

    await asyncio.to_thread(ask)


async def ask_chain(url: str, _: Path) -> None:
    async with ChainConnection(url) as chain:
        await chain.chain_id()


async def ask_node(url: str, _: Path) -> None:
    async with JsonRpc(url) as node:
        await node.request("eth_chainId", [])


async def ask_as_up(url: str, _: Path) -> None:
    await json_rpc.call(url, "eth_chainId")


CLIENTS = pytest.mark.parametrize(
    ("host", "ask"),
    [
        ("market", ask_market),
        ("market", ask_blobs),
        ("node", ask_chain),
        ("node", ask_node),
        ("node", ask_as_up),
    ],
)
Ask = Callable[[str, Path], Awaitable[None]]


@CLIENTS
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
async def test_clients__proxy_named__all_go_through_it(
    host: str,
    ask: Ask,
    variable: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, world.proxy.url())
    before = len(world.proxy.asked())

    await ask(f"http://{host}.example", tmp_path)

    assert f"http://{host}.example/" in world.proxy.asked()[before]


@CLIENTS
@pytest.mark.parametrize(
    ("scheme", "password", "status"), [("http", "wrong", "407"), ("https", "s3cret", "403")]
)
async def test_clients__proxy_refuses__are_told_which_and_why_without_its_password(
    host: str,
    ask: Ask,
    scheme: str,
    password: str,
    status: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"{scheme}_proxy", world.proxy.url(password))

    with pytest.raises(TallystickError) as caught:
        await ask(f"{scheme}://{host}.example", tmp_path)

    told = str(caught.value)
    assert f" through the proxy http://127.0.0.1:{world.proxy.port}" in told and status in told
    assert password not in told


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("http://127.0.0.1:1", "through the proxy http://127.0.0.1:1 (ConnectError)"),
        ("socks5://127.0.0.1:1", "ALL_PROXY names a socks5 proxy, and only HTTP proxies"),
        ("http://proxy:port", "ALL_PROXY is no URL of a proxy"),
    ],
)
def test_offers__proxy_of_no_use__one_line(proxy: str, words: str) -> None:
    said = call(["offers", "list", "--market", "http://market.example"], {"ALL_PROXY": proxy})

    assert words in complaint(said)
