"""An account's hands on the chain of one market: its contracts, and one sequence of nonces.

What was sent lies in a database for each chain: nonces are of chain and account, whatever contracts
a market of that chain has.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.wallet import Wallet
from market.bodies.network import NetworkView
from tallystick.chains import chain_name, hold_for
from tallystick.sdk.on_chain import deployment_of


def transactions_in(folder: Path, network: NetworkView) -> Path:
    """Where a folder keeps what was sent to this chain."""
    return folder / f"transactions-{network.chain_id}-{network.genesis.hex()[:16]}.db"


@dataclass(frozen=True)
class OnChain:
    """What an owner can read and send."""

    contracts: Contracts
    sender: Sender
    store: SqliteTransactions


@asynccontextmanager
async def on_chain(
    network: NetworkView,
    wallet: Wallet,
    folder: Path,
    say: Callable[[str], None],
    kept: Sequence[str] = (),
) -> AsyncIterator[OnChain]:
    """Connect, with what `folder` keeps of the market's chain in its place.

    Args:
        network: As the market says; its node must be of that chain.
        wallet: Of the account. One process at a time: it has one sequence of nonces.
        folder: Holds what was sent.
        say: Told in one line what was put aside, and what came back.
        kept: Patterns of what else it keeps of a chain.

    Raises:
        WrongConfiguration: the node is of another chain than the market says.
        Conflict: another process uses the folder on another chain.
        Unavailable: the node does not answer.
    """
    async with ChainConnection(network.rpc_url) as chain:
        await chain.need_chain(network.chain_id, network.genesis)
        with hold_for(folder, chain_name(network), kept, say):
            store = SqliteTransactions(transactions_in(folder, network))
            try:
                sender = Sender(chain, wallet, store, network.chain_id)
                yield OnChain(bind(chain, deployment_of(network)), sender, store)
            finally:
                store.close()
