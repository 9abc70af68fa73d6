"""A provider's hands on the chain: its wallet, the contracts of one market, one nonce sequence."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.wallet import Wallet
from market.bodies.network import NetworkView
from tallystick.sdk.on_chain import deployment_of


@dataclass(frozen=True)
class OnChain:
    """What an owner can read and send."""

    contracts: Contracts
    sender: Sender


@asynccontextmanager
async def on_chain(
    network: NetworkView, wallet: Wallet, transactions: Path
) -> AsyncIterator[OnChain]:
    """Connect; whoever does holds the provider's folder, as one process sends at a time."""
    store = SqliteTransactions(transactions)
    try:
        async with ChainConnection(network.rpc_url) as chain:
            sender = Sender(chain, wallet, store, network.chain_id)
            yield OnChain(bind(chain, deployment_of(network)), sender)
    finally:
        store.close()
