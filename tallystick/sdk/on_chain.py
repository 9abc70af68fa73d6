"""An account's hands on the chain of one market, and adding to a job's budget with them.

The contracts are those that the market names; there is one sequence of nonces. What was sent lies
in a database for each chain: nonces are of chain and account, whatever contracts a market of that
chain has. What the market said of its chain is kept too, so that money can be moved when the market
is gone.

A deposit or a top-up is one's own transaction, with the permit for it inside: one call that pays or
does not. A top-up that was interrupted anywhere resumes: what is about to be paid has a name on
disk before anything is sent, and a transaction is stored before it leaves, so a repeated call finds
what was sent and pays nothing twice. The name goes when the chain has run it.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from contracts.chain.blocks import Block
from contracts.chain.connection import Call, ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deployment import DEVELOPMENT_CHAINS, Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.governance.escrow import Budget
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Conflict, NotFound, Refused, Unaffordable
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import PERMIT
from market.bodies.market import FaucetRequest, NetworkView
from market.bodies.routes import GET_JOB, GET_NETWORK, POST_FAUCET
from tallystick.chains import chain_name, hold_for
from tallystick.files import replace_file
from tallystick.reading import read_kept
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import http_url
from tallystick.sdk.moved import ToppedUp
from tallystick.sdk.orders import NETWORK_FILE
from tallystick.sdk.submit import token_domain

# ------------------------------------------------------------------------------------- the account

MIN_GAS_WEI = 10**17
_PERMIT_SECONDS = 30 * 86_400  # it travels inside the one call that uses it


def deployment_of(network: NetworkView) -> Deployment:
    """Where the contracts of a market are."""
    addresses = network.contracts.model_dump()
    return Deployment(chain_id=network.chain_id, block=network.deployed_block, **addresses)


def kept_network(folder: Path, rpc: str | None = None) -> NetworkView:
    """What the market of a folder said of its chain when it was last used; no market is asked.

    Args:
        folder: Of a provider or a poster.
        rpc: Address of the node to use instead of the market's.

    Raises:
        NotFound: the folder was never used with a market.
        Malformed: the file is damaged, or `rpc` is no URL.
    """
    path, rpc = folder / NETWORK_FILE, None if rpc is None else http_url(rpc, "a node")
    network = read_kept(NetworkView, path, ", or of another version")
    if network is None:
        raise NotFound(f"no {path}: this folder was never used with a market")
    return network if rpc is None else network.model_copy(update={"rpc_url": rpc})


def transactions_in(folder: Path, network: NetworkView) -> Path:
    """Where a folder keeps what was sent to this chain; its store refuses a node of another."""
    there = sorted(folder.glob(f"transactions-{network.chain_id}-*.db"))
    if there and network.chain_id not in DEVELOPMENT_CHAINS:
        return there[0]  # whatever first block a market names
    return folder / f"transactions-{network.chain_id}-{network.genesis.hex()[:16]}.db"


@dataclass(frozen=True)
class OnChain:
    """What an owner can read and send."""

    network: NetworkView
    contracts: Contracts
    sender: Sender
    store: SqliteTransactions
    wallet: Wallet

    async def permitted(self, amount: BaseUnits, call: Call, at: Block) -> Call:
        """`call` behind a permit that lets the escrow take `amount` of our tokens for it.

        Raises:
            WrongChain: the market names a token that is none of this chain.
        """
        account, escrow = self.wallet.account, self.contracts.escrow
        deadline = UnixSeconds(at.timestamp + _PERMIT_SECONDS)
        nonce = await self.contracts.token.permit_nonce(account, at)
        values = (account, escrow.address, amount, nonce, deadline)
        separator = token_domain(self.network).separator
        signature = self.wallet.sign_permit(PERMIT, values, separator)
        return escrow.together([escrow.permit(account, amount, deadline, signature), call])

    async def fund(self, client: MarketClient, tokens: BaseUnits, key: str) -> BaseUnits:
        """Ask the faucet for gas and tokens, where there is one and they are missing.

        Returns:
            The tokens that the wallet holds.
        """
        account, chain = self.wallet.account, self.contracts.chain
        held = await self._held(account)
        if self.network.embedded and (held < tokens or await chain.balance(account) < MIN_GAS_WEI):
            with contextlib.suppress(Refused):  # what is held may be enough
                await client.call(POST_FAUCET, FaucetRequest(account=account), key=key)
            held = await self._held(account)
        return held

    async def _held(self, account: Address) -> BaseUnits:
        return await self.contracts.token.balance(account, await self.contracts.chain.head())


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
        network: As the market says, or as `kept_network` does; its node must be of that chain.
        wallet: Of the account. One process at a time: it has one sequence of nonces.
        folder: Holds what was sent, and what the market said of its chain.
        say: Told in one line what was put aside, and what came back.
        kept: Patterns of what else it keeps of a chain.

    Raises:
        WrongConfiguration: the node is of another chain than the market says.
        Conflict: another process uses the folder on another chain.
        Unavailable: the node does not answer.
    """
    async with ChainConnection(network.rpc_url) as chain:
        await chain.need_chain(network.chain_id, network.genesis)
        with hold_for(folder, chain_name(network), (NETWORK_FILE, *kept), say):
            replace_file(folder / NETWORK_FILE, network.model_dump_json().encode())
            store = SqliteTransactions(transactions_in(folder, network))
            try:
                sender = Sender(chain, wallet, store, network.chain_id)
                yield OnChain(network, bind(chain, deployment_of(network)), sender, store, wallet)
            finally:
                store.close()


# -------------------------------------------------------------------------------------- topping up


class Pending(BaseModel):
    """A top-up that has begun and is not known to be mined."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: str
    amount: int


async def top_up(
    client: MarketClient,
    wallet: Wallet,
    job: JobId,
    amount: BaseUnits,
    *,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
) -> ToppedUp:
    """Add `amount` to the budget of `job`; what is not granted of it is the poster's.

    Args:
        client: The market; names the chain.
        wallet: Pays the tokens and the gas, and need not be the poster.
        job: Which.
        amount: Base units.
        folder: Of what this wallet has sent and of what an interrupted call resumes from.
            One process at a time: an account has one sequence of nonces.
        say: Told when what the folder keeps of another chain is put aside.

    Raises:
        NotFound: the job, or it is not in the escrow yet.
        Conflict: the job is closed, or another top-up was interrupted; data: `would_fit`.
        Unaffordable: the wallet holds less.
        ContractRefused: the chain would not take it.
        Unavailable: it may or may not have happened; call again.
    """
    await client.call(GET_JOB, job=job)
    network = await client.call(GET_NETWORK)
    path = folder / f"topup-{job.hex()}.json"
    async with on_chain(network, wallet, folder, say, ("topup-*.json",)) as own:
        remedy = ": look at the job's budget, then delete it to top up afresh"
        pending = read_kept(Pending, path, remedy)
        if pending is not None and pending.amount != amount:
            raise Conflict(
                f"a top-up of {format_tokens(BaseUnits(pending.amount))} tokens was interrupted: "
                "repeat it first",
                would_fit=str(pending.amount),
            )
        if pending is None:
            _check(await _budget(own.contracts, job))
            pending = Pending(name=secrets.token_hex(8), amount=amount)
            replace_file(path, pending.model_dump_json().encode())
        transaction = await _pay(client, own, job, pending, path)
        budget = await _budget(own.contracts, job)
    return ToppedUp.of(budget, job=job, amount=amount, transaction=transaction)


async def rehearse_top_up(client: MarketClient, job: JobId, amount: BaseUnits) -> ToppedUp:
    """What the escrow would hold after `top_up`, which refuses as this does; nothing is sent."""
    await client.call(GET_JOB, job=job)
    network = await client.call(GET_NETWORK)
    async with ChainConnection(network.rpc_url) as chain:
        budget = await _budget(bind(chain, deployment_of(network)), job)
    _check(budget)
    return ToppedUp(
        job=job,
        amount=amount,
        funded=BaseUnits(budget.funded + amount),
        free=BaseUnits(budget.free + amount),
        transaction=None,
    )


async def _budget(contracts: Contracts, job: JobId) -> Budget:
    return (await contracts.escrow.budgets([job], await contracts.chain.head()))[job]


async def _pay(
    client: MarketClient, own: OnChain, job: JobId, pending: Pending, path: Path
) -> Digest:
    """Send what has not been sent; the transaction that paid."""
    amount, key = BaseUnits(pending.amount), f"topup:{pending.name}"
    await own.sender.resend()
    try:
        call = None
        if await own.store.find(own.sender.account, key) is None:
            held = await own.fund(client, amount, f"topup-{pending.name}")
            if held < amount:
                raise Unaffordable(
                    f"0x{own.sender.account.hex()} holds {format_tokens(held)} tokens; send it "
                    "more",
                    held=held,
                    wanted=amount,
                )
            head = await own.contracts.chain.head()
            call = await own.permitted(amount, own.contracts.escrow.top_up(job, amount), head)
        receipt = await own.sender.send(key, call)
    except Refused:
        if await own.store.find(own.sender.account, key) is None:  # else it may still be run
            path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)
    return receipt.transaction


def _check(budget: Budget) -> None:
    if not budget.funded and not budget.committed:
        raise NotFound("nothing of this job is in escrow yet; its budget goes there first")
    if budget.closed_at:
        raise Conflict("the job is closed: nothing more can be granted", would_fit="0")
