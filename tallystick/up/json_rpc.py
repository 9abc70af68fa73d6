"""One JSON-RPC call, for readiness and for what only `up` may ask of the chain.

The market's own chain client is `contracts.chain`.
"""

from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainUnreachable, RpcFailed

_TIMEOUT_SECONDS = 4.0


async def call(url: str, method: str, *parameters: object) -> object:
    """The result of one call; raises as `JsonRpc.request`."""
    async with JsonRpc(url, timeout_seconds=_TIMEOUT_SECONDS) as node:
        return await node.request(method, parameters)


async def answers(url: str) -> bool:
    """Whether a chain answers at `url`."""
    try:
        return isinstance(await call(url, "eth_chainId"), str)
    except (ChainUnreachable, RpcFailed):
        return False
