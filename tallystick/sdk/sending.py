"""An account's hands on the chain of one market: its contracts, and one sequence of nonces.

What was sent lies in `transactions.db` of a folder, which is of that very chain while it is used.
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
from contracts.terms.errors import WrongConfiguration
from market.bodies.network import NetworkView
from tallystick.chains import ASIDE, UNKNOWN, chain_name, hold_for, noted_chain
from tallystick.sdk.on_chain import deployment_of

TRANSACTIONS = "transactions.db"


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
        folder: Holds `transactions.db`.
        say: Told in one line what was put aside, and what came back.
        kept: Patterns of what else it keeps of a chain.

    Raises:
        WrongConfiguration: the node is of another chain than the market says.
        Conflict: another process uses the folder on another chain.
        Unavailable: the node does not answer.
    """
    path = folder / TRANSACTIONS
    async with ChainConnection(network.rpc_url) as chain:
        await chain.need_chain(network.chain_id, network.genesis)
        name, unknown = chain_name(network), folder / ASIDE / UNKNOWN
        is_ours = noted_chain(folder) is not None or await _ran(chain, path)
        if (unknown / TRANSACTIONS).exists() and await _ran(chain, unknown / TRANSACTIONS):
            unknown.replace(folder / ASIDE / name)
        with hold_for(folder, name, (f"{TRANSACTIONS}*", *kept), say, is_ours=is_ours):
            store = SqliteTransactions(path)
            try:
                sender = Sender(chain, wallet, store, network.chain_id)
                yield OnChain(bind(chain, deployment_of(network)), sender, store)
            finally:
                store.close()


async def _ran(chain: ChainConnection, path: Path) -> bool:
    """Whether this chain ran what is in a store of before chains were noted, if there is one."""
    if not path.exists():
        return True
    store = SqliteTransactions(path)
    try:
        await store.need_chain(chain)
    except WrongConfiguration:
        return False
    finally:
        store.close()
    return True
