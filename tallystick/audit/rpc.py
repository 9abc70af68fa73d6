"""A node to read from, over HTTP: JSON-RPC with typed errors, nothing else."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from contracts.terms.errors import ChainUnreachable, RpcFailed

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TIMEOUT_SECONDS = 30.0


class JsonRpc:
    """`verification.audit.collecting.Rpc` over HTTP. `async with` closes its connections."""

    def __init__(self, url: str) -> None:
        self.url = url
        is_own = urlsplit(url).hostname in _LOOPBACK  # no proxy to oneself
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=not is_own)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """The result of one call.

        Raises:
            ChainUnreachable: no answer, or none that is JSON-RPC.
            RpcFailed: the node answered with an error.
        """
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            answer = (await self._http.post(self.url, json=body)).json()
        except (ValueError, RecursionError) as error:
            raise ChainUnreachable(f"{self.url} does not speak JSON-RPC") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChainUnreachable(f"{self.url}: {error or type(error).__name__}") from error
        if not isinstance(answer, dict) or not {"result", "error"} & set(answer):
            raise ChainUnreachable(f"{self.url} does not speak JSON-RPC")
        if "error" in answer:
            raise RpcFailed(f"{method}: {answer['error']}")
        return answer["result"]
