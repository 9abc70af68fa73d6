"""A real chain for tests: anvil on a free port, in a folder of the test, gone with it."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deploy import DeploySettings, run
from contracts.chain.deployment import NAMES, Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.store import load_or_create_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.errors import ChainUnreachable
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.adapters.chain import TOKEN_VERSION
from market.bodies.market import ContractsView, EscrowTimesView, NetworkView, TokenView
from tallystick.up import anvil as shipped
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.data_folder import DataFolder
from tallystick.up.node import find_anvil
from tallystick.up.ports import choose
from tests.support.patience import patience

ROLES = ("deployer", "anchorer", "slasher", "canceller", "faucet", "relayer")
FAST_TIMES = {"margin": 60, "announce": 2, "execute": 10, "tail": 80}
"""Of the escrow, in seconds."""
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
        self._chain = shipped.Anvil(home, find_anvil(), self.port)

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
class Deployed:
    """Our contracts on a chain, and a sender for each role."""

    chain: ChainConnection
    contracts: Contracts
    deployment: Deployment
    senders: dict[str, Sender]


@dataclass
class DeployedChain(Deployed):
    """The same on an anvil of the test."""

    anvil: Anvil


def role_wallets(folder: Path) -> dict[str, Wallet]:
    """Wallets of all roles; their keystores are made on first use."""
    return {role: load_or_create_wallet(folder / "keys" / f"{role}.json") for role in ROLES}


@contextlib.asynccontextmanager
async def deployed_at(
    url: str, folder: Path, wallets: Mapping[str, Wallet], times: Mapping[str, int]
) -> AsyncIterator[Deployed]:
    """Deploy with the keys in `folder`, whose accounts have gas, and these times of the escrow."""
    async with ChainConnection(url, timeout_seconds=patience(10)) as chain:
        deployment = await run(
            DeploySettings(
                rpc_url=url,
                keys=folder / "keys",
                contracts=folder / "deployment.json",
                escrow_times=dict(times),
            )
        )
        store = SqliteTransactions(folder / "transactions.db")
        senders = {
            role: Sender(chain, wallet, store, deployment.chain_id)
            for role, wallet in wallets.items()
        }
        yield Deployed(chain, bind(chain, deployment), deployment, senders)
        store.close()


@contextlib.asynccontextmanager
async def deployed_chain(folder: Path) -> AsyncIterator[DeployedChain]:
    """Start anvil in `folder` and deploy with short times."""
    import random

    anvil = Anvil(folder, choose((), random.SystemRandom()))
    await anvil.start()
    try:
        wallets = role_wallets(folder)
        async with ChainConnection(anvil.url) as chain:
            await anvil.fund(chain, *(wallet.account for wallet in wallets.values()))
        async with deployed_at(anvil.url, folder, wallets, FAST_TIMES) as made:
            yield DeployedChain(anvil=anvil, **vars(made))
    finally:
        await anvil.stop()


async def network_of(deployed: DeployedChain) -> NetworkView:
    """What a market would say of its chain; it has no faucet."""
    where, chain, token = deployed.deployment, deployed.chain, deployed.contracts.token
    head = await chain.head()
    name, symbol, decimals = await token.label(head)
    return NetworkView(
        version="test",
        chain_id=where.chain_id,
        genesis=await chain.genesis(),
        rpc_url=deployed.anvil.url,
        embedded=False,
        contracts=ContractsView(**{each: getattr(where, each) for each in NAMES}),
        deployed_block=where.block,
        token=TokenView(
            name=name,
            version=TOKEN_VERSION,
            symbol=symbol,
            decimals=decimals,
            domain_separator=await token.domain_separator(head),
        ),
        times=EscrowTimesView(**FAST_TIMES),
        parameters=await deployed.contracts.parameters.values(head),
        anchorer=deployed.senders["anchorer"].account,
        confirmations=1,
        clock=UnixMillis(head.timestamp * 1000),
    )
