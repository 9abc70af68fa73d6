"""A real chain for tests: anvil on a free port, in a folder of the test, gone with it."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deploy import DeploySettings, run
from contracts.chain.deployment import Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.store import load_or_create_wallet
from contracts.terms.errors import ChainUnreachable
from contracts.terms.ids import Address
from tallystick.up import anvil as shipped
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.data_folder import DataFolder
from tallystick.up.node import find_anvil
from tallystick.up.ports import choose
from tests.support.patience import patience

ROLES = ("deployer", "anchorer", "proposer", "disputes", "slasher", "faucet", "relayer")
FAST_CLOCKS = {
    "challenge_window": 2,
    "min_epoch_length": 1,
    "epoch_length": 2,
    "response_window": 2,
    "refund_delay": 6,
    "notice_period": 2,
}
SHORT_WINDOWS = FAST_CLOCKS | {"announcement_window": 2, "execution_window": 10}
WEI = 10**20


@dataclass
class Anvil:
    """The chain of `up`, which a test may kill and start again on its state file."""

    folder: Path
    port: int
    child: Child | None = None
    _chain: shipped.Anvil = field(init=False)

    def __post_init__(self) -> None:
        home = DataFolder(self.folder)
        home.chain.mkdir(exist_ok=True)
        self._chain = shipped.Anvil(home, find_anvil(), self.port, {})

    @property
    def url(self) -> str:
        """JSON-RPC endpoint, all methods."""
        return self._chain.url

    async def start(self) -> None:
        """Start, or start again; returns when it answers."""
        spec = self._chain.spec()
        await self._chain.prepare()
        self.child = children.start(
            spec.argv, environment=spec.environment, log=self.folder / "anvil.log"
        )
        async with asyncio.timeout(patience(20)), ChainConnection(self.url) as chain:
            while True:
                with contextlib.suppress(ChainUnreachable):
                    await chain.chain_id()
                    return
                await asyncio.sleep(0.02)

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it; SIGKILL loses what was not dumped yet."""
        if self.child and not self.child.ended.is_set():
            await self.child.stop(number, grace=5.0)

    async def save(self) -> None:
        """Return when a kill no longer costs what the chain holds now."""
        async with asyncio.timeout(patience(20)):
            await self._chain.wait_saved()

    def forget(self) -> None:
        """Of a stopped chain: as if it had not dumped since `save`, or never."""
        self._chain.state.unlink(missing_ok=True)

    async def fund(self, chain: ChainConnection, *accounts: Address) -> None:
        """Give gas."""
        for account in accounts:
            await chain.request("anvil_setBalance", [f"0x{account.hex()}", hex(WEI)])


@dataclass
class DeployedChain:
    """A chain with our contracts, and a sender for each role."""

    anvil: Anvil
    chain: ChainConnection
    contracts: Contracts
    deployment: Deployment
    senders: dict[str, Sender]


@contextlib.asynccontextmanager
async def deployed_chain(folder: Path) -> AsyncIterator[DeployedChain]:
    """Start anvil in `folder` and deploy with fast clocks."""
    import random

    anvil = Anvil(folder, choose((), random.SystemRandom()))
    await anvil.start()
    try:
        async with ChainConnection(anvil.url) as chain:
            keys = folder / "keys"
            wallets = {role: load_or_create_wallet(keys / f"{role}.json") for role in ROLES}
            await anvil.fund(chain, *(wallet.account for wallet in wallets.values()))
            deployment = await run(
                DeploySettings(
                    rpc_url=anvil.url,
                    keys=keys,
                    contracts=folder / "deployment.json",
                    chain_parameters=SHORT_WINDOWS,
                )
            )
            store = SqliteTransactions(folder / "transactions.db")
            senders = {
                role: Sender(chain, wallet, store, deployment.chain_id)
                for role, wallet in wallets.items()
            }
            yield DeployedChain(anvil, chain, bind(chain, deployment), deployment, senders)
            store.close()
    finally:
        await anvil.stop()
