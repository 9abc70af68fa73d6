"""A node that does not behave is given up within the time that its asker has."""

import asyncio
import contextlib

import pytest

from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainUnreachable


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with a blank now and then, for ever."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.02)


async def test_request__node_that_drips__is_given_up() -> None:
    async with await asyncio.start_server(drips, "127.0.0.1", 0) as server:
        node = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with JsonRpc(node, timeout_seconds=0.3) as rpc:
            with pytest.raises(ChainUnreachable, match="does not answer"):
                await rpc.request("eth_chainId", [])


@pytest.mark.parametrize("path", ["v3/s3cret", "?key=s3cret"])
async def test_request__key_in_the_url__is_not_shown(path: str) -> None:
    async with JsonRpc(f"http://ann:s3cret@127.0.0.1:1/{path}") as rpc:
        with pytest.raises(ChainUnreachable, match=r"^http://127\.0\.0\.1:1 does not") as told:
            await rpc.request("eth_chainId", [])
    assert "s3cret" not in str(told.value)
