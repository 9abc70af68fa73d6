"""`tallystick provider claim` and `withdraw`: what a provider gets, and how it takes all back.

An agent that runs holds its folder: it alone sends transactions of its account. So `claim` waits
for a running agent, which claims by itself, and stake moves only when none runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from contracts.terms import errors
from contracts.terms.amounts import UINT96_MAX, BaseUnits, format_tokens, read_tokens
from contracts.terms.ids import Address, AddressField, Digest, DigestField
from market.bodies.base import Body, Money
from market.bodies.market import AccountView
from market.bodies.offers import Withdrawal
from market.bodies.routes import DELETE_OFFER, GET_ACCOUNT, GET_NETWORK, GET_PROVIDER
from market.bodies.signing import withdrawal_digest
from tallystick.cli.options import (
    DryRun,
    Market,
    ProviderHome,
    Timeout,
    ask,
    needs_chain,
    provider_home,
    typed,
)
from tallystick.cli.output import moment_here, notice, shows
from tallystick.cli.wallet import account_in, open_wallet
from tallystick.provider.folder import (
    KEPT_OF_CHAIN,
    ProviderFolder,
    agent_pid,
    keystore_in,
    note_withdrawn,
    stored_offer,
)
from tallystick.sdk.client import MarketClient

if TYPE_CHECKING:
    from tallystick.sdk.on_chain import OnChain

_POLL_SECONDS = 0.5
_TRIES = 3  # of a claim: each time a newer epoch may have become final in between


# --------------------------------------------------------------------------------------- claim


class Claimed(Body):
    """What was claimed, or by a dry run would be; `by` says who did: this command, or the agent."""

    account: AddressField
    by: Literal["us", "agent", "nobody"]
    amount: Money
    epoch: int | None
    transaction: DigestField | None
    claimed: Money  # in all, from all epochs
    pending: Money  # earned, and in no final epoch yet


def _claimed_lines(found: Claimed) -> Iterator[str]:
    amount = format_tokens(found.amount)
    match found.by:
        case "us":
            yield f"claimed {amount} tokens of epoch {found.epoch}"
        case "agent":
            yield f"the agent has claimed {amount} tokens"
        case "nobody" if found.amount:
            yield f"would claim {amount} tokens"
        case "nobody":
            yield "nothing to claim now"
    yield (
        f"claimed in all {format_tokens(found.claimed)} tokens, "
        f"{format_tokens(found.pending)} more wait for a final epoch"
    )


@shows(Claimed, lines=_claimed_lines)
def claim_command(
    market: Market = None,
    home: ProviderHome = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until something of what is earned can be claimed.")
    ] = False,
    timeout: Timeout = 600,
    dry_run: DryRun = False,
) -> Claimed:
    """Claim what final epochs owe this provider. A running agent does so by itself.

    Example: tallystick provider claim --wait --timeout 60
    """
    folder = provider_home(home)
    account, ends = account_in(keystore_in(folder)), time.monotonic() + timeout

    async def run(client: MarketClient) -> Claimed:
        before = now = await client.call(GET_ACCOUNT, account=account)
        if wait and not now.claimable and _pending(now):
            notice("nothing to claim yet")
            # An agent that runs may have claimed it before we look.
            now = await _until(
                client, account, lambda it: it.claimable > 0 or it.claimed > before.claimed, ends
            )
        if dry_run or (not now.claimable and now.claimed == before.claimed):
            return _claimed(now, by="nobody", amount=now.claimable)
        if now.claimable and agent_pid(folder) is None:
            return await _claimed_by_us(client, folder)
        notice("the agent runs, and claims by itself")
        after = await _until(client, account, lambda it: not it.claimable, ends)
        return _claimed(after, by="agent", amount=BaseUnits(after.claimed - before.claimed))

    return ask(market, run)


async def _until(
    client: MarketClient,
    account: Address,
    holds: Callable[[AccountView], bool],
    ends: float,
) -> AccountView:
    while not holds(now := await client.call(GET_ACCOUNT, account=account)):
        if time.monotonic() > ends:
            raise errors.DeadlineExceeded(
                f"{format_tokens(now.claimable)} tokens are claimable, "
                f"{format_tokens(_pending(now))} wait for a final epoch; "
                "`tallystick epoch list` shows until when",
                claimable=str(now.claimable),
                pending=str(_pending(now)),
            )
        await asyncio.sleep(_POLL_SECONDS)
    return now


def _pending(account: AccountView) -> BaseUnits:
    return BaseUnits(max(0, account.earned - account.claimed - account.claimable))


def _claimed(
    account: AccountView,
    *,
    by: Literal["us", "agent", "nobody"],
    amount: BaseUnits,
    epoch: int | None = None,
    transaction: Digest | None = None,
) -> Claimed:
    return Claimed(
        account=account.account,
        by=by,
        amount=amount,
        epoch=epoch,
        transaction=transaction,
        claimed=account.claimed,
        pending=_pending(account),
    )


async def _claimed_by_us(client: MarketClient, home: Path) -> Claimed:
    with needs_chain():
        from tallystick.provider.money import Dues, claim
    async with _own(client, home) as own:
        account, contracts = own.sender.account, own.contracts
        dues = Dues(client, account)
        for tries in range(1, _TRIES + 1):
            claimed = await contracts.settlement.claimed(account, await contracts.chain.head())
            due = await dues.look(claimed)
            if due is None:
                break
            try:
                receipt = await claim(due, contracts, own.sender)
            except errors.ContractRefused:
                if tries == _TRIES:
                    raise
                continue
            return _claimed(
                await client.call(GET_ACCOUNT, account=account),
                by="us",
                amount=due.amount,
                epoch=due.proof.epoch,
                transaction=receipt.transaction,
            )
    return _claimed(
        await client.call(GET_ACCOUNT, account=account), by="nobody", amount=BaseUnits(0)
    )


# ------------------------------------------------------------------------------------ withdraw


class Withdrawn(Body):
    """What was taken back, or by a dry run would be."""

    account: AddressField
    dry_run: bool
    offer: DigestField | None  # that stands no more
    asked: Money  # of stake; comes after the unbonding delay
    taken: Money  # of stake asked for earlier: now in the wallet
    unbonding: Money  # on its way, all in all
    withdrawable_at: int | None  # Unix seconds
    transactions: tuple[DigestField, ...]


def _withdrawn_lines(found: Withdrawn) -> Iterator[str]:
    would = "would be " if found.dry_run else ""
    if found.offer is not None:
        yield f"offer {found.offer.hex()[:12]} {would}withdrawn; a lease of it goes on"
    if found.taken:
        yield f"{format_tokens(found.taken)} tokens {would}taken to 0x{found.account.hex()}"
    if found.asked:
        yield f"{format_tokens(found.asked)} tokens of stake {would}asked back"
    if found.unbonding and found.withdrawable_at:
        yield (
            f"{format_tokens(found.unbonding)} tokens are unbonding until "
            f"{moment_here(1000 * found.withdrawable_at)}; then "
            "`tallystick provider withdraw --unbonded`"
        )
    if found.offer is None and not (found.taken or found.asked or found.unbonding):
        yield "nothing to withdraw: no offer stands, and no stake was asked for (see --stake)"


@shows(Withdrawn, lines=_withdrawn_lines)
def withdraw_command(
    stake: Annotated[
        str | None,
        typer.Option("--stake", help="Tokens of stake to ask back, or `all` that is free."),
    ] = None,
    unbonded: Annotated[
        bool, typer.Option("--unbonded", help="Take stake that was asked back earlier.")
    ] = False,
    market: Market = None,
    home: ProviderHome = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until all that is unbonding is taken.")
    ] = False,
    timeout: Timeout = 3600,
    dry_run: DryRun = False,
) -> Withdrawn:
    """Take the standing offer back, and stake if asked for.

    A lease of the offer goes on. An agent that runs stays, and offers nothing more; the next
    `provider start` makes a new offer. Stake moves only while no agent runs, comes after the
    chain's unbonding delay, and no earlier than its jobs are over.

    Example: tallystick provider withdraw --stake all --wait
    """
    folder = provider_home(home)
    amount = _amount(stake)
    moves = stake is not None or unbonded or wait
    if moves and not dry_run and (pid := agent_pid(folder)) is not None:
        raise errors.Conflict(
            f"the agent (pid {pid}) uses this account: `tallystick provider drain --wait` first",
            pid=pid,
        )
    ends = time.monotonic() + timeout

    async def run(client: MarketClient) -> Withdrawn:
        offer = await _take_offer_back(client, folder, dry_run=dry_run)
        if dry_run or not moves:
            return await _as_it_is(client, folder, offer, amount, dry_run=dry_run)
        return await _move_stake(client, folder, offer, amount, wait_until=ends if wait else None)

    return ask(market, run)


def _amount(stake: str | None) -> BaseUnits | None:
    """Stake to ask back; None is all that is free."""
    if stake is None:
        return BaseUnits(0)
    if stake == "all":
        return None
    amount = typed("--stake", stake, read_tokens)
    if not 0 < amount <= UINT96_MAX:
        raise errors.Malformed(f"--stake {stake:.80}: a number of tokens above 0, or `all`")
    return amount


async def _take_offer_back(client: MarketClient, home: Path, *, dry_run: bool) -> Digest | None:
    stored = stored_offer(home)
    if stored is None:
        return None
    offer, session = stored
    name = offer.message.digest()
    standing = (await client.call(GET_PROVIDER, account=offer.message.account)).offers
    if name not in (each.offer for each in standing):
        return None
    if not dry_run:
        # Noted first: an agent that looks in between must not renew it.
        note_withdrawn(home, offer)
        signature = session.private_key.sign(withdrawal_digest(name))
        await client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=name)
    return name


async def _as_it_is(
    client: MarketClient,
    home: Path,
    offer: Digest | None,
    amount: BaseUnits | None,
    *,
    dry_run: bool,
) -> Withdrawn:
    """The answer where no stake moves: as the market sees it."""
    account = account_in(keystore_in(home))
    stake = (await client.call(GET_ACCOUNT, account=account)).stake
    free = BaseUnits(stake.active - stake.reserved)
    asked = free if amount is None else amount
    if asked > free:
        raise errors.InsufficientStake(
            f"{format_tokens(free)} tokens are not reserved for jobs", wanted=asked, free=free
        )
    return Withdrawn(
        account=account,
        dry_run=dry_run,
        offer=offer,
        asked=asked,
        taken=BaseUnits(0),
        unbonding=stake.unbonding,
        withdrawable_at=None,
        transactions=(),
    )


async def _move_stake(
    client: MarketClient,
    home: Path,
    offer: Digest | None,
    amount: BaseUnits | None,
    *,
    wait_until: float | None,
) -> Withdrawn:
    with needs_chain():
        from tallystick.provider.money import move
    async with _own(client, home) as own:
        moved = await move(own, amount)
        asked, taken, transactions = moved.asked, moved.taken, moved.transactions
        while wait_until is not None and moved.stake.unbonding:
            if time.monotonic() > wait_until:
                raise errors.DeadlineExceeded(
                    f"{format_tokens(moved.stake.unbonding)} tokens are unbonding until "
                    f"{moment_here(1000 * moved.stake.withdrawable_at)}",
                    withdrawable_at=moved.stake.withdrawable_at,
                )
            await asyncio.sleep(_POLL_SECONDS)
            moved = await move(own, BaseUnits(0))
            taken = BaseUnits(taken + moved.taken)
            transactions += moved.transactions
        account, stake = own.sender.account, moved.stake
    return Withdrawn(
        account=account,
        dry_run=False,
        offer=offer,
        asked=asked,
        taken=taken,
        unbonding=stake.unbonding,
        withdrawable_at=stake.withdrawable_at if stake.unbonding else None,
        transactions=transactions,
    )


# --------------------------------------------------------------------------------------- chain


@asynccontextmanager
async def _own(client: MarketClient, home: Path) -> "AsyncIterator[OnChain]":
    """The account's only sender: the folder is held meanwhile."""
    with needs_chain():
        from tallystick.sdk.on_chain import on_chain
    folder = ProviderFolder(home)
    try:
        wallet = open_wallet(keystore_in(home))
        network = await client.call(GET_NETWORK)
        async with on_chain(network, wallet, folder.home, notice, KEPT_OF_CHAIN) as own:
            yield own
    finally:
        folder.close()
