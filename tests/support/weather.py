"""Bad weather around a job's money; `money_story` says what must be equal when it has passed.

`Sky` makes the blocks of a market's chain, and takes blocks back.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from contracts.terms.errors import ChainUnreachable, RpcFailed
from tallystick.up import json_rpc
from tallystick.up.processes import Identity, send
from tests.support.patience import patience
from tests.support.stack import Stack, is_stopped

BLOCK_SECONDS = 0.5
CHAIN = ("anvil", "gateway")
OTHERS = ("postgres", "redis", "api", "worker", "worker-chain", "beat", "host")
"""All services of `up` but the chain."""


# ---------------------------------------------------------------------------------------- weather


class Sky:
    """Makes the blocks of a market's chain, one each half second."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, method: str, *parameters: object) -> object:
        """Ask the node itself."""
        return await json_rpc.call(self._url, method, *parameters)

    async def blow(self) -> None:
        """Make blocks for ever."""
        while True:
            with contextlib.suppress(ChainUnreachable, RpcFailed):
                await self.ask("evm_mine")
            await asyncio.sleep(BLOCK_SECONDS)

    async def take_back(self, depth: int) -> tuple[int, int]:
        """Replace the newest blocks by empty ones; the numbers of the first and the last."""
        head = int(str(await self.ask("eth_blockNumber")), 16)
        await self.ask("anvil_reorg", depth, [])
        return head - depth + 1, head


@asynccontextmanager
async def sky(running: Stack) -> AsyncIterator[Sky]:
    """Make the blocks of a market's chain until the end."""
    made = Sky(f"http://127.0.0.1:{running.services.ports['anvil']}")
    await made.ask("evm_setAutomine", False)
    blowing = asyncio.create_task(made.blow())
    try:
        yield made
    finally:
        blowing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await blowing
        await made.ask("evm_setAutomine", True)


@asynccontextmanager
async def held_still(*identities: Identity) -> AsyncIterator[None]:
    """These processes stand still until the end."""
    for each in identities:
        assert send(each, signal.SIGSTOP)
    async with asyncio.timeout(patience(10)):
        while not all(is_stopped(each.pid) for each in identities):
            await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for each in identities:
            send(each, signal.SIGCONT)


async def pass_moment(moment: float) -> None:
    """Wait until the wall's clock, by which signatures expire, is past a moment."""
    await asyncio.sleep(max(0.0, moment - time.time()))


async def end_market(running: Stack) -> None:
    """End every service of `up` but the chain, for good: none is started again."""
    supervisor = running.services._supervisor
    assert supervisor is not None
    for name in OTHERS:
        service = supervisor._services[name]
        if service.keeper:
            service.keeper.cancel()
    for name in OTHERS:
        send(running.services.identity(name), signal.SIGKILL)
    await asyncio.gather(*(supervisor._stop(supervisor._services[name]) for name in OTHERS))
