"""What the escrow holds for a job, and its poster's part of it: `job money`, `close`, `reclaim`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import UINT80_MAX, BaseUnits, format_tokens, in_tokens, read_tokens
from contracts.terms.errors import Malformed, NotFound, TallystickError
from contracts.terms.ids import DigestField, JobId, JobIdField
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_names import digits_of
from market.bodies.base import Body, Money
from market.bodies.money import JobMoney, OrderView
from market.bodies.routes import GET_JOB, GET_MONEY
from tallystick.cli.options import (
    DryRun,
    Job,
    Market,
    PosterWallet,
    ask_of_job,
    market_url,
    named_job,
    needs_chain,
    poster_wallet,
    typed,
)
from tallystick.cli.output import facts, moment, notice, shows, table
from tallystick.cli.wallet import account_in, open_wallet
from tallystick.sdk.client import MarketClient
from tallystick.sdk.watch import DONE_STATES

if TYPE_CHECKING:
    from tallystick.sdk.escrow import Known

Rpc = Annotated[str | None, typer.Option("--rpc", help="Node of the chain. Default: the market's.")]


# ------------------------------------------------------------------------------------------ money


def money_lines(money: JobMoney) -> Iterator[RenderableType]:
    """A job's money for a person."""
    rows = {
        "budget": _tokens(money.funded),
        "committed": f"{_tokens(money.committed)}: the sum of all limits",
        "earned": f"{_tokens(money.earned)}, vested {_tokens(money.vested)}",
        "claimed": _tokens(money.claimed),
        "free": _tokens(money.free),
        "may be committed": f"{_tokens(money.allowance)} now, {_tokens(money.rate)} more an hour",
    }
    if money.closed_at is not None:
        rows["closed"] = _when(money.closed_at)
    yield facts("", rows)
    yield from returns_lines(money)
    if money.warning is not None:
        yield f"warning: {money.warning}"
    yield table(
        "",
        ("account", "#limit", "#earned", "#vested", "#claimed", "#stake", "ended"),
        (
            (
                f"0x{each.account.hex()}",
                *map(
                    format_tokens,
                    (each.limit, each.earned, each.vested, each.claimed, each.stake),
                ),
                "" if each.end is None else _when(each.end),
            )
            for each in money.accounts
        ),
    )


def returns_lines(money: JobMoney) -> Iterator[str]:
    """What comes back to the poster, and when."""
    for each in money.returns:
        if each.amount and each.at is None:
            yield f"{_tokens(each.amount)} are free now: `tallystick job reclaim` brings them"
    yield from _unspent_lines(money)


def _unspent_lines(money: JobMoney) -> Iterator[str]:
    for each in money.returns:
        if each.amount and each.at is not None:
            yield (
                f"{_tokens(each.amount)} of limits that nobody needs come free at "
                f"{_when(each.at)}; the market sends back what is left of a closed job"
            )


@shows(JobMoney, lines=money_lines, rows="accounts")
def money_command(job: Job, market: Market = None) -> JobMoney:
    """Show how much of a job's budget is committed, earned, vested, claimed and free.

    Example: tallystick job money JOB
    """
    return ask_of_job(market, job, lambda client, wanted: client.whole(GET_MONEY, job=wanted))


# ------------------------------------------------------------------------------------------ close


class Closed(Body):
    """A job whose close is on its way, or on the chain; a dry run asks nothing."""

    job: JobIdField
    order: OrderView | None  # that the market has
    transaction: DigestField | None  # one's own


def _closed_lines(closed: Closed) -> Iterator[str]:
    if closed.transaction is not None:
        yield f"{closed.job.hex()}: closed by transaction 0x{closed.transaction.hex()}"
    elif closed.order is None:
        yield f"would close {closed.job.hex()}: nobody works on, what is vested stays claimable"
    else:
        yield f"{closed.job.hex()}: the market has the close, which is {closed.order.state}"
        yield "what comes back when: `tallystick job money`"


@shows(Closed, lines=_closed_lines)
def close_command(
    job: Job,
    market: Market = None,
    wallet: PosterWallet = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="By a transaction of one's own, which needs gas.")
    ] = False,
    rpc: Rpc = None,
    dry_run: DryRun = False,
) -> Closed:
    """Close a job for good: nobody works on, and what was not earned comes back.

    What is vested stays claimable for ever. Without --direct the poster signs, and the market
    sends it; with it no market is needed for a job that was ordered from here.

    Example: tallystick job close JOB
    """
    keystore = poster_wallet(wallet)
    account_in(keystore)  # that there is none is told before a market is asked

    async def run() -> Closed:
        async with _posted(job, market, keystore, rpc) as (client, known):
            from tallystick.sdk.escrow import close, close_directly

            wanted = known.spec.job()
            if dry_run:
                return Closed(job=wanted, order=None, transaction=None)
            own = open_wallet(keystore)
            if not direct:
                order = await close(client, own, known)
                return Closed(job=wanted, order=order, transaction=None)
            folder = keystore.parent / "poster"
            sent = await close_directly(client, own, known, folder=folder, say=notice)
            return Closed(job=wanted, order=None, transaction=sent)

    return asyncio.run(run())


# ---------------------------------------------------------------------------------------- reclaim


class Reclaimed(Body):
    """What came into the poster's wallet, or would, and what the escrow still holds for the job."""

    job: JobIdField
    amount: Money
    committed: Money
    free: Money  # that was left
    transaction: DigestField | None  # None: a dry run, or nothing was free


def _reclaimed_lines(found: Reclaimed) -> Iterator[str]:
    if not found.amount:
        yield f"nothing is free; limits of accounts hold {_tokens(found.committed)}"
        return
    would = "would be " if found.transaction is None else "are "
    yield f"{_tokens(found.amount)} {would}in the poster's wallet"
    yield f"{_tokens(found.free)} left free, {_tokens(found.committed)} held by limits of accounts"
    if found.transaction is not None:
        yield f"transaction 0x{found.transaction.hex()}"


@shows(Reclaimed, lines=_reclaimed_lines)
def reclaim_command(
    job: Job,
    amount: Annotated[
        str | None, typer.Argument(help="Tokens, as 12.5. Default: all that is free.")
    ] = None,
    market: Market = None,
    wallet: PosterWallet = None,
    rpc: Rpc = None,
    dry_run: DryRun = False,
) -> Reclaimed:
    """Take back what of a job's budget is not committed, by a transaction of one's own.

    It needs gas, and no market for a job that was ordered from here: a node and the folder of
    orders beside the wallet are enough.

    Example: tallystick job reclaim JOB 5 --dry-run
    """
    wanted, keystore = None if amount is None else _amount(amount), poster_wallet(wallet)
    account_in(keystore)

    async def run() -> Reclaimed:
        async with _posted(job, market, keystore, rpc) as (client, known):
            return await _reclaim(
                client, open_wallet(keystore), known, wanted, keystore, dry_run=dry_run
            )

    return asyncio.run(run())


async def _reclaim(
    client: MarketClient,
    wallet: Wallet,
    known: "Known",
    amount: BaseUnits | None,
    keystore: Path,
    *,
    dry_run: bool = False,
) -> Reclaimed:
    from tallystick.sdk.escrow import reclaim

    found = await reclaim(
        client,
        wallet,
        known,
        amount,
        folder=keystore.parent / "poster",
        say=notice,
        rehearse=dry_run,
    )
    return Reclaimed(
        job=known.spec.job(),
        amount=found.amount,
        committed=found.committed,
        free=found.free,
        transaction=found.transaction,
    )


@asynccontextmanager
async def _posted(
    job: str, market: str | None, keystore: Path, rpc: str | None
) -> AsyncIterator[tuple[MarketClient, "Known"]]:
    """The job that a person named: of the orders beside the wallet, else as the market says."""
    with needs_chain():
        from tallystick.sdk.escrow import known_job, told_job
        from tallystick.sdk.on_chain import kept_network
    orders = keystore.parent / "orders"
    async with MarketClient(market_url(market)) as client:
        try:
            known = known_job(orders, kept_network(orders, rpc), digits_of(job).lower())
        except NotFound:
            known = await told_job(client, await named_job(client, job))
            if rpc is not None:
                known = known.by_node(rpc)
        yield client, known


def _amount(text: str) -> BaseUnits:
    found = typed("AMOUNT", text, read_tokens)
    if not 0 < found <= UINT80_MAX:
        raise Malformed(f"{text!r:.80}: an amount above 0 is wanted")
    return BaseUnits(found)


# ------------------------------------------------------------------------------ the end of a job


async def close_and_reclaim(
    client: MarketClient, wallet: Wallet, job: JobId, keystore: Path
) -> None:
    """Close a job if it is over, take back what is free, and say what comes free when.

    What cannot be done now is said, and is no error: the job itself is over.
    """
    try:
        view = await client.call(GET_JOB, job=job)
        if view.state not in DONE_STATES or not view.funded:
            return
        with needs_chain():
            from tallystick.sdk.escrow import close, told_job, until_closed, until_quit
        known = await told_job(client, job)
        await until_quit(client, job)
        await close(client, wallet, known)
        money = await until_closed(client, job)
        if money.free:
            found = await _reclaim(client, wallet, known, None, keystore)
            for line in _reclaimed_lines(found):
                notice(line)
        for line in _unspent_lines(money):
            notice(line)
    except TallystickError as error:
        notice(f"the rest of the budget stays in escrow for now: {error}")
        notice("`tallystick job close` and `tallystick job reclaim` bring it back")


def _tokens(amount: int) -> str:
    return f"{in_tokens(amount)} tokens"


def _when(at: UnixSeconds) -> str:
    return f"{moment(UnixMillis(at * 1000))} UTC"
