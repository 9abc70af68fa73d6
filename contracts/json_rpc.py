"""A node of a chain, asked over HTTP by JSON-RPC, with errors of ours. Needs no web3."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from contracts.http_clients import async_client, by_proxy, server_of
from contracts.terms.errors import ChainUnreachable, RpcFailed

Ask = Callable[[str, Sequence[object]], Awaitable[Any]]
"""One call: a method and its parameters."""


async def first_block_hash(ask: Ask) -> bytes:
    """Hash of a chain's first block, which tells it from all others of its id.

    The second block names it. anvil makes a first block at each start, also when it loads a chain,
    and afterwards shows either one under number 0.

    Raises:
        ChainUnreachable: the answer is no block; and as `ask`.
    """
    first, second = [await ask("eth_getBlockByNumber", [at, False]) for at in ("0x0", "0x1")]
    try:
        return bytes.fromhex(((second or {}).get("parentHash") or first["hash"])[2:])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ChainUnreachable(f"the node names no first block ({error!r})") from error


class JsonRpc:
    """A node at `url`. `async with` closes its connections.

    Raises:
        WrongConfiguration: the proxy that leads there cannot be used.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        self.url, self._seconds = url, timeout_seconds
        headers = {"content-type": "application/json"}
        self._http = async_client(url, timeout=timeout_seconds, headers=headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """The result of one call.

        Raises:
            ChainUnreachable: no answer, or none that is JSON-RPC.
            RpcFailed: the node answered with an error.
        """
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = await self.post(json.dumps(call).encode())
        if "error" in answer:
            error = answer["error"]
            code = error.get("code") if isinstance(error, dict) else None
            raise RpcFailed(f"{method}: {error}", rpc_code=code)
        return answer["result"]

    async def post(self, call: bytes) -> dict[str, Any]:
        """The whole answer to an encoded call: it has a `result` or an `error`.

        Raises:
            ChainUnreachable: as of `request`.
        """
        try:
            async with asyncio.timeout(self._seconds):  # in all; httpx's is for each read
                response = await self._http.post(self.url, content=call)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ChainUnreachable(
                f"{server_of(self.url)} does not answer{by_proxy(self.url)} ({reason})"
            ) from error
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or not {"result", "error"} & answer.keys():
            status = "" if response.is_success else f" (HTTP {response.status_code})"
            raise ChainUnreachable(
                f"{server_of(self.url)} does not speak JSON-RPC{by_proxy(self.url)}{status}"
            )
        return answer
