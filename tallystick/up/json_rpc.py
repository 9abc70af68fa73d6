"""One JSON-RPC call over loopback, for readiness and for what only `up` may ask of the chain.

Proxy variables are ignored. The market's own chain client is `contracts.chain`.
"""

import httpx

from contracts.terms.errors import ChainUnreachable, RpcFailed

_TIMEOUT_SECONDS = 4.0


def loopback_client(*, is_tls: bool = False) -> httpx.AsyncClient:
    """A client without proxies; reading all certificates takes 20 ms, so only where TLS is."""
    return httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS, verify=is_tls)


async def call(url: str, method: str, *parameters: object) -> object:
    """The result of one call.

    Raises:
        ChainUnreachable: no answer, or none that is JSON-RPC.
        RpcFailed: the node answered with an error.
    """
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(parameters)}
    try:
        async with loopback_client(is_tls=url.startswith("https:")) as client:
            answer = (await client.post(url, json=body)).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ChainUnreachable(f"{method}: {error or type(error).__name__}") from error
    if not isinstance(answer, dict) or "result" not in answer:
        raise RpcFailed(f"{method}: {answer}")
    return answer["result"]


async def answers(url: str) -> bool:
    """Whether a chain answers at `url`."""
    try:
        return isinstance(await call(url, "eth_chainId"), str)
    except (ChainUnreachable, RpcFailed):
        return False
