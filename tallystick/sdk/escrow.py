"""A poster's hands on the escrow: closing a job, and taking back what of its budget is free.

A close goes through the market, which needs no gas, or by one's own transaction. Taking back before
the job is closed for TAIL is the poster's own transaction: one call moves what is not committed
into the poster's balance in the escrow and from there into its wallet. Neither needs a market: what
was signed and where the contracts are lies in the folder of orders. Amounts are base units.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from contracts.governance.escrow import signing_seconds
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import (
    Conflict,
    ContractRefused,
    DeadlineExceeded,
    Forbidden,
    NotFound,
    Unavailable,
)
from contracts.terms.escrow_messages import Close
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.market import NetworkView
from market.bodies.money import JobMoney, OrderView, PostOrder
from market.bodies.routes import GET_JOB, GET_MONEY, GET_NETWORK, POST_ORDER
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.moved import Reclaimed
from tallystick.sdk.on_chain import OnChain, on_chain
from tallystick.sdk.orders import signed_spec

Say = Callable[[str], None]
CLOSED_WITHIN = timedelta(minutes=2)
QUIT_WITHIN = timedelta(seconds=30)
"""In which agents say that they stop, so that what they did not need is free at once."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Known:
    """A job of a poster, and the chain that it is on."""

    spec: JobSpec
    network: NetworkView

    @property
    def domain(self) -> Domain:
        """What messages to its escrow are signed under."""
        return Domain(self.network.chain_id, self.network.contracts.escrow)

    def by_node(self, rpc: str) -> "Known":
        """The same, read and written through another node."""
        return replace(self, network=self.network.model_copy(update={"rpc_url": rpc}))


async def told_job(client: MarketClient, job: JobId) -> Known:
    """The job as its market knows it.

    Raises:
        NotFound: it does not. BadSignature: it shows another one.
    """
    spec = signed_spec((await client.call(GET_JOB, job=job)).signed, job).message
    return Known(spec, await client.call(GET_NETWORK))


# ----------------------------------------------------------------------------------------- closing


async def close(client: MarketClient, wallet: Wallet, known: Known) -> OrderView:
    """Have the market close a job: nobody works on, and what is not earned comes back after TAIL.

    Raises:
        Forbidden: another wallet posted it. Conflict, Unavailable: as the market answers.
    """
    _need_poster(wallet, known)
    clock = (await client.call(GET_NETWORK)).clock // 1000
    signed = _signed_close(wallet, known, clock)
    body = PostOrder(signed=signed.encoded())
    return await client.call(POST_ORDER, body, job=known.spec.job())


async def until_quit(client: MarketClient, job: JobId) -> JobMoney:
    """A job's money once agents have said what they do not need, or did not for a while."""
    return await _until(client, job, lambda money: money.committed <= money.earned, QUIT_WITHIN)


async def until_closed(client: MarketClient, job: JobId) -> JobMoney:
    """A job's money once the chain has its close.

    Raises:
        DeadlineExceeded: it did not come.
    """
    money = await _until(client, job, lambda money: money.closed_at is not None, CLOSED_WITHIN)
    if money.closed_at is None:
        raise DeadlineExceeded(f"the close of job {job.hex()} is not on the chain yet")
    return money


async def _until(
    client: MarketClient, job: JobId, holds: Callable[[JobMoney], bool], within: timedelta
) -> JobMoney:
    ends = asyncio.get_running_loop().time() + within.total_seconds()
    while True:
        money = await retrying(lambda: client.call(GET_MONEY, job=job), patience=within)
        if holds(money) or asyncio.get_running_loop().time() >= ends:
            return money
        await asyncio.sleep(_LOOK_SECONDS)


async def close_directly(
    client: MarketClient, wallet: Wallet, known: Known, *, folder: Path, say: Say
) -> Digest:
    """Close a job by a transaction of its poster; returns it.

    Args:
        client: The market; asked for gas on the chain that it runs, and need not answer.
        wallet: The poster's; pays the gas.
        known: The job.
        folder: Of what this wallet has sent. One process at a time.
        say: Told what of another chain is put aside.

    Raises:
        Forbidden: another wallet posted it.
        ContractRefused: the job was never opened.
        Unavailable: it may or may not have happened; call again.
    """
    _need_poster(wallet, known)
    job = known.spec.job()
    async with on_chain(known.network, wallet, folder, say) as own:
        await own.sender.resend()
        await _give_gas(client, own)
        head = await own.contracts.chain.head()
        signed = _signed_close(wallet, known, head.timestamp)
        call = own.contracts.escrow.close(known.spec.header(), signed)
        return (await own.sender.send(f"close:{job.hex()}", call)).transaction


def _signed_close(wallet: Wallet, known: Known, now: int) -> Signed[Close]:
    by = UnixSeconds(now + signing_seconds(known.network.times.margin))
    return wallet.sign(Close(job=known.spec.job(), by=by), known.domain)


# -------------------------------------------------------------------------------------- taking back


async def reclaim(
    client: MarketClient,
    wallet: Wallet,
    known: Known,
    amount: BaseUnits | None,
    *,
    folder: Path,
    say: Say,
    rehearse: bool = False,
) -> Reclaimed:
    """Bring what is not committed of a job, and the poster's balance, into its wallet.

    Args:
        client: The market; asked for gas on the chain that it runs, and need not answer.
        wallet: The poster's; pays the gas.
        known: The job.
        amount: How much; None: all of it.
        folder: Of what this wallet has sent. One process at a time.
        say: Told what of another chain is put aside.
        rehearse: Send nothing.

    Raises:
        Forbidden: another wallet posted it.
        Conflict: so much is not free, or no longer; data: `would_fit`.
        NotFound: the job was never opened.
        Unavailable: it may or may not have happened; call again.
    """
    _need_poster(wallet, known)
    job, account = known.spec.job(), wallet.account
    async with on_chain(known.network, wallet, folder, say) as own:
        escrow, chain = own.contracts.escrow, own.contracts.chain
        if not rehearse:
            await own.sender.resend()
        head = await chain.head()
        budget = (await escrow.budgets([job], head))[job]
        balance = (await escrow.balances([account], head))[account][0]
        if not budget.funded and not budget.committed and not balance:
            raise NotFound("the escrow holds nothing of this job, and nothing for its poster")
        there = budget.free + balance
        wanted = there if amount is None else amount
        if wanted > there:
            raise Conflict(
                f"{format_tokens(there)} tokens are free: {format_tokens(budget.free)} of the job, "
                f"{format_tokens(balance)} in the poster's balance; limits of accounts hold "
                f"{format_tokens(budget.committed)}",
                would_fit=str(there),
            )
        from_job = min(wanted, budget.free)
        found = Reclaimed(
            job=job,
            amount=BaseUnits(wanted),
            from_job=BaseUnits(from_job),
            committed=BaseUnits(budget.committed),
            free=BaseUnits(there - wanted),
            transaction=None,
        )
        if rehearse or not wanted:
            return found
        calls = [escrow.withdraw(account, found.amount)]
        if from_job:
            calls.insert(0, escrow.reclaim(known.spec.header(), found.from_job))
        await _give_gas(client, own)
        # The key names its nonce: the same amount once more is another intention.
        key = f"reclaim:{job.hex()}:{await chain.nonce(account)}"
        try:
            receipt = await own.sender.send(key, escrow.together(calls))
        except ContractRefused as error:
            raise Conflict(
                f"the chain did not give {format_tokens(wanted)} tokens back ({error}): a limit "
                "was raised meanwhile, or there is no such job; look again"
            ) from error
    return found.model_copy(update={"transaction": receipt.transaction})


async def _give_gas(client: MarketClient, own: OnChain) -> None:
    with contextlib.suppress(Unavailable):  # a chain may be left when its market is gone
        number = await own.contracts.chain.nonce(own.wallet.account)
        await own.fund(client, BaseUnits(0), f"gas-{own.wallet.account.hex()}-{number}")


def _need_poster(wallet: Wallet, known: Known) -> None:
    if known.spec.poster != wallet.account:
        raise Forbidden(
            f"0x{known.spec.poster.hex()} posted this job, this wallet is 0x{wallet.account.hex()}",
            account=wallet.account,
        )
