"""An HTTP client of a test's market, without a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from contracts.terms.digest import blob_digest
from market.api.app import make_app
from market.bodies.base import API_PREFIX
from market.bodies.signing import HostCredential
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import Signer, signed_by
from tests.support.market_world import World

TOKEN = "the host's token"
HOST = {"Authorization": f"Bearer {HostCredential('host').shown(TOKEN)}"}


def once(key: str = "k1") -> dict[str, str]:
    """The header that routes want where money moves."""
    return {"Idempotency-Key": key}


def signed(
    world: World, by: Signer, method: str, path: str, body: bytes = b"", *, key: str = ""
) -> dict[str, str]:
    """The headers of a request that `by` signs; `path` is without `/v1`."""
    target, name = f"{API_PREFIX}{path}", blob_digest(body)
    shown = signed_by(by, world.domain, method, target, name, world.now, key=key)
    return {"Authorization": shown} | (once(key) if key else {})


def sdk(world: World, token: str = "") -> MarketClient:
    """The client that providers and posters have."""
    transport = httpx.ASGITransport(make_app(world.api()))
    return MarketClient("http://market", token=token, transport=transport)


@asynccontextmanager
async def client_of(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client; exceptions of the application become its answers, as behind a server."""
    transport = httpx.ASGITransport(make_app(world.api()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://market/v1") as client:
        yield client
