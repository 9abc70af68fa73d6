"""A job's money, and its poster's hands on it: `job money`, `topup`, `close`, `reclaim`."""

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
from market.bodies.base import Body
from market.bodies.money import AccountMoney, JobMoney, OrderView, ReturnView
from market.bodies.routes import GET_JOB, GET_MONEY
from tallystick.cli.options import (
    DryRun,
    Job,
    Market,
    PosterWallet,
    ask_of_job,
    market_url,
    named_job,
    needs_provider,
    one_of,
    poster_wallet,
    typed,
)
from tallystick.cli.output import facts, moment, notice, sent_lines, shows
from tallystick.cli.shown import rows_table
from tallystick.cli.wallet import account_in, open_wallet
from tallystick.sdk.client import MarketClient
from tallystick.sdk.moved import Reclaimed, ToppedUp
from tallystick.sdk.orders import orders_in
from tallystick.sdk.watch import DONE_STATES

if TYPE_CHECKING:
    from tallystick.sdk.escrow import Known

Rpc = Annotated[str | None, typer.Option("--rpc", help="Node of the chain. Default: the market's.")]


# ------------------------------------------------------------------------------------------ money


def _money_lines(money: JobMoney) -> Iterator[RenderableType]:
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
    yield from (_return_line(each) for each in money.returns if each.amount)
    if money.warning is not None:
        yield f"warning: {money.warning}"
    yield rows_table("", AccountMoney, money.accounts)


def _return_line(each: ReturnView) -> str:
    """What comes back to the poster, and when."""
    if each.at is None:
        return f"{_tokens(each.amount)} are free now: `tallystick job reclaim` brings them"
    return (
        f"{_tokens(each.amount)} of limits that nobody needs come free at {_when(each.at)}; the "
        "market sends back what is left of a closed job"
    )


@shows(JobMoney, lines=_money_lines, rows="accounts")
def money_command(job: Job, market: Market = None) -> JobMoney:
    """Show how much of a job's budget is committed, earned, vested, claimed and free.

    Example: tallystick job money JOB
    """
    return ask_of_job(market, job, lambda client, wanted: client.whole(GET_MONEY, job=wanted))


# ----------------------------------------------------------------------------------------- topup


def _topped_lines(found: ToppedUp) -> Iterator[str]:
    would = "would be " if found.transaction is None else ""
    yield (
        f"{format_tokens(found.amount)} tokens {would}paid; {format_tokens(found.funded)} "
        f"{would}in escrow, {format_tokens(found.free)} of them free"
    )
    yield from sent_lines(found.transaction)


@shows(ToppedUp, lines=_topped_lines)
def topup_command(
    job: Job,
    amount: Annotated[str, typer.Argument(help="Tokens to add, as 12.5.")],
    market: Market = None,
    wallet: PosterWallet = None,
    dry_run: DryRun = False,
) -> ToppedUp:
    """Add to a job's budget by a transaction of one's own; interrupted, the same call resumes.

    It needs gas. Whoever pays, what is not granted to anybody is the poster's.

    Example: tallystick job topup JOB 12.5 --dry-run
    """
    added, keystore = _amount(amount), _keystore(wallet)

    async def run(client: MarketClient, wanted: JobId) -> ToppedUp:
        await client.call(GET_JOB, job=wanted)
        with needs_provider():
            from tallystick.sdk.on_chain import rehearse_top_up, top_up
        if dry_run:
            return await rehearse_top_up(client, wanted, added)
        folder = _folder(keystore)
        return await top_up(client, open_wallet(keystore), wanted, added, folder=folder, say=notice)

    return ask_of_job(market, job, run)


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
    keystore = _keystore(wallet)

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
            sent = await close_directly(client, own, known, folder=_folder(keystore), say=notice)
            return Closed(job=wanted, order=None, transaction=sent)

    return asyncio.run(run())


# ---------------------------------------------------------------------------------------- reclaim


def _reclaimed_lines(found: Reclaimed) -> Iterator[str]:
    if not found.amount:
        yield f"nothing is free; limits of accounts hold {_tokens(found.committed)}"
        return
    would = "would be " if found.transaction is None else "are "
    yield f"{_tokens(found.amount)} {would}in the poster's wallet"
    yield f"{_tokens(found.free)} left free, {_tokens(found.committed)} held by limits of accounts"
    yield from sent_lines(found.transaction)


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
    wanted, keystore = None if amount is None else _amount(amount), _keystore(wallet)

    async def run() -> Reclaimed:
        async with _posted(job, market, keystore, rpc) as (client, known):
            from tallystick.sdk.escrow import reclaim

            return await reclaim(
                client,
                open_wallet(keystore),
                known,
                wanted,
                folder=_folder(keystore),
                say=notice,
                rehearse=dry_run,
            )

    return asyncio.run(run())


@asynccontextmanager
async def _posted(
    job: str, market: str | None, keystore: Path, rpc: str | None
) -> AsyncIterator[tuple[MarketClient, "Known"]]:
    """The job that a person named: of the orders beside the wallet, else as the market says."""
    with needs_provider():
        from tallystick.sdk.escrow import Known, told_job
        from tallystick.sdk.on_chain import kept_network
    orders = keystore.parent / "orders"
    async with MarketClient(market_url(market)) as client:
        try:
            network = kept_network(orders, rpc)
            ordered = {spec.job(): spec for spec in orders_in(orders)}
            known = Known(one_of(ordered, job, str(orders)), network)
        except NotFound:
            known = await told_job(client, await named_job(client, job))
            if rpc is not None:
                known = known.by_node(rpc)
        yield client, known


def _keystore(wallet: Path | None) -> Path:
    """The poster's; that there is none is told before a market is asked."""
    keystore = poster_wallet(wallet)
    account_in(keystore)
    return keystore


def _folder(keystore: Path) -> Path:
    """Of what this wallet has sent."""
    return keystore.parent / "poster"


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
        with needs_provider():
            from tallystick.sdk.escrow import close, reclaim, told_job, until_closed, until_quit
        known = await told_job(client, job)
        await until_quit(client, job)
        await close(client, wallet, known)
        money = await until_closed(client, job)
        if money.free:
            folder = _folder(keystore)
            found = await reclaim(client, wallet, known, None, folder=folder, say=notice)
            for line in _reclaimed_lines(found):
                notice(line)
        for each in money.returns:
            if each.amount and each.at is not None:
                notice(_return_line(each))
    except TallystickError as error:
        notice(f"the rest of the budget stays in escrow for now: {error}")
        notice("`tallystick job close` and `tallystick job reclaim` bring it back")


def _tokens(amount: int) -> str:
    return f"{in_tokens(amount)} tokens"


def _when(at: UnixSeconds) -> str:
    return f"{moment(UnixMillis(at * 1000))} UTC"
