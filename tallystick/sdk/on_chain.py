"""An account's hands on the chain of one market, and adding to a job's escrow with them.

The contracts are those that the market names; there is one sequence of nonces. What was sent lies
in a database for each chain: nonces are of chain and account, whatever contracts a market of that
chain has.

A top-up is one's own transaction. Interrupted anywhere, a second call resumes: what is about to be
paid has a name on disk before anything is sent, and every transaction is stored before it leaves,
so a repeated call finds what was sent and pays nothing twice. The name goes when the chain has run
it; the next top-up is another one.

What it changes, and what it cannot: a job earns at most the budget that its poster signed, however
much is in escrow, because coordinator, members and audit derive every seal from that number. A
top-up fills escrow up to the budget (of a job that somebody opened with less); whatever is above
comes back with the refund. More work is another job.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deployment import Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.chain.wrappers.escrow import Funds, JobPhase
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Conflict, Malformed, NotFound, Refused, Unaffordable
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.bodies.market import FaucetRequest, NetworkView
from market.bodies.routes import GET_JOB, GET_NETWORK, POST_FAUCET
from tallystick.chains import chain_name, hold_for
from tallystick.files import replace_file
from tallystick.sdk.client import MarketClient

# ------------------------------------------------------------------------------------- the account


def deployment_of(network: NetworkView) -> Deployment:
    """Where the contracts of a market are."""
    addresses = network.contracts.model_dump()
    return Deployment(chain_id=network.chain_id, block=network.deployed_block, **addresses)


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


# -------------------------------------------------------------------------------------- topping up

MIN_GAS_WEI = 10**17


@dataclass(frozen=True)
class ToppedUp:
    """What the chain holds for a job after a top-up."""

    transaction: Digest | None  # None: a rehearsal, and nothing was sent
    deposited: BaseUnits  # all deposits less refunds
    budget: BaseUnits  # as signed: the most that the job can earn


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
    beyond_budget: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> ToppedUp:
    """Add `amount` to the escrow of `job`; the market notes it when it is confirmed.

    Args:
        client: The market; names the chain and the job's spec, whose id binds the budget.
        wallet: Pays the tokens and the gas, and need not be the poster, to whom refunds go.
        job: Which.
        amount: Base units.
        folder: Of what this wallet has sent and of what an interrupted call resumes from.
            One process at a time: an account has one sequence of nonces.
        beyond_budget: Pay also what the job can never earn.
        say: Told when what the folder keeps of another chain is put aside.

    Raises:
        NotFound: the job, or nothing of it is in escrow yet.
        Conflict: the job is closing, it could not earn all of it, or another top-up was
            interrupted; data: `would_fit`.
        Unaffordable: the wallet holds less.
        ContractRefused: the chain would not take it.
        Unavailable: it may or may not have happened; call again.
    """
    spec, network = await _spec_of(client, job), await client.call(GET_NETWORK)
    path = folder / f"topup-{job.hex()}.json"
    async with on_chain(network, wallet, folder, say, ("topup-*.json",)) as own:
        payer = _Payer(client, network, own.contracts, own.sender, own.store)
        pending = _load(path)
        if pending is not None and pending.amount != amount:
            raise Conflict(
                f"a top-up of {format_tokens(BaseUnits(pending.amount))} tokens was interrupted: "
                "repeat it first",
                would_fit=str(pending.amount),
            )
        if pending is None:
            _check(await payer.funds(job), spec, amount, beyond_budget=beyond_budget)
            pending = Pending(name=secrets.token_hex(8), amount=amount)
            _save(path, pending)
        transaction = await payer.pay(job, pending, path)
        funds = await payer.funds(job)
    return ToppedUp(transaction, funds.deposited, spec.budget)


async def rehearse_top_up(
    client: MarketClient, job: JobId, amount: BaseUnits, *, beyond_budget: bool = False
) -> ToppedUp:
    """What the chain would hold after `top_up`, which refuses as this does; nothing is sent."""
    spec, network = await _spec_of(client, job), await client.call(GET_NETWORK)
    async with ChainConnection(network.rpc_url) as chain:
        escrow = bind(chain, deployment_of(network)).escrow
        funds = await escrow.funds(job, await chain.head())
    _check(funds, spec, amount, beyond_budget=beyond_budget)
    return ToppedUp(None, BaseUnits(funds.deposited + amount), spec.budget)


@dataclass(frozen=True)
class _Payer:
    """One account that pays."""

    client: MarketClient
    network: NetworkView
    contracts: Contracts
    sender: Sender
    store: SqliteTransactions

    async def funds(self, job: JobId) -> Funds:
        return await self.contracts.escrow.funds(job, await self.contracts.chain.head())

    async def pay(self, job: JobId, pending: Pending, path: Path) -> Digest:
        """Send what has not been sent; the transaction that paid."""
        amount, key = BaseUnits(pending.amount), f"topup:{pending.name}"
        await self.sender.resend()
        try:
            if await self.store.find(self.sender.account, key) is None:
                await self._fund(amount, pending)
                await self._approve(amount)
            receipt = await self.sender.send(key, self.contracts.escrow.top_up(job, amount))
        except Refused:
            if await self.store.find(self.sender.account, key) is None:  # else it may still be run
                path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)
        return receipt.transaction

    async def _fund(self, amount: BaseUnits, pending: Pending) -> None:
        """Gas and tokens from the faucet, where there is one and they are missing."""
        held, gas = await self._held()
        if (held < amount or gas < MIN_GAS_WEI) and self.network.embedded:
            with contextlib.suppress(Refused):  # what is held may be enough
                key = f"topup-{pending.name}"
                await self.client.call(
                    POST_FAUCET, FaucetRequest(account=self.sender.account), key=key
                )
            held, _ = await self._held()
        if held < amount:
            raise Unaffordable(
                f"0x{self.sender.account.hex()} holds {format_tokens(held)} tokens; send it more",
                held=held,
                wanted=amount,
            )

    async def _held(self) -> tuple[BaseUnits, int]:
        head = await self.contracts.chain.head()
        tokens = await self.contracts.token.balance(self.sender.account, head)
        return tokens, await self.contracts.chain.balance(self.sender.account)

    async def _approve(self, amount: BaseUnits) -> None:
        """Let the escrow take `amount`, if it may not yet."""
        token, chain, escrow = self.contracts.token, self.contracts.chain, self.contracts.escrow
        may_take = await token.allowance(self.sender.account, escrow.address, await chain.head())
        if may_take < amount:
            # The key names its nonce: an approval that was used up is another intention.
            number = await chain.nonce(self.sender.account)
            key = f"approve:escrow:{number}"
            await self.sender.send(key, token.approve(escrow.address, amount))


async def _spec_of(client: MarketClient, job: JobId) -> JobSpec:
    """The job's spec, whatever the market says: its id is computed from it."""
    spec = expect(decode_signed((await client.call(GET_JOB, job=job)).signed), JobSpec).message
    if spec.job() != job:
        raise Malformed("the market shows the spec of another job", job=job.hex())
    return spec


def _check(funds: Funds, spec: JobSpec, amount: BaseUnits, *, beyond_budget: bool) -> None:
    if funds.phase == JobPhase.NONE:
        raise NotFound("nothing of this job is in escrow yet; its budget goes there first")
    if funds.phase != JobPhase.OPEN:
        raise Conflict("the job is closing: a top-up would only be refunded", would_fit="0")
    fits = max(0, spec.budget - funds.deposited)
    if amount > fits and not beyond_budget:
        raise Conflict(
            f"the job can earn {format_tokens(spec.budget)} tokens, as its poster signed, and "
            f"{format_tokens(funds.deposited)} are in escrow: {format_tokens(BaseUnits(fits))} "
            "more can be of use, the rest would come back with the refund; more work is another "
            "job",
            would_fit=str(fits),
        )


def _load(path: Path) -> Pending | None:
    try:
        return Pending.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Malformed(
            f"{path} is damaged: look at the job's escrow, then delete it to top up afresh"
        ) from error


def _save(path: Path, pending: Pending) -> None:
    replace_file(path, pending.model_dump_json().encode())
