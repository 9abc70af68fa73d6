"""`tallystick provider settle`, `settle-all`, `quit`, `withdraw`: how a provider gets its money.

They need the provider's folder and a node, and no market: the folder keeps where the contracts are,
and of each job its header and the newest seal with all pay. An agent that runs holds its folder,
sends all transactions of its account, and does by itself what `settle` and `quit` do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import typer
from rich.console import RenderableType

from contracts.terms import errors
from contracts.terms.amounts import UINT96_MAX, BaseUnits, format_tokens, read_tokens
from contracts.terms.ids import AddressField, Digest, DigestField, JobIdField
from contracts.terms.messages import Offer
from contracts.terms.typed_names import parse_address
from market.bodies.base import Body, Money, SignedField
from market.bodies.money import PostOrder
from market.bodies.offers import Withdrawal
from market.bodies.routes import DELETE_OFFER, GET_PROVIDER, POST_ORDER
from market.bodies.signing import withdrawal_digest
from tallystick.cli.options import (
    DryRun,
    Job,
    Market,
    ProviderHome,
    ask,
    market_url,
    needs_provider,
    one_of,
    provider_home,
    typed,
)
from tallystick.cli.output import moment_here, notice, sent_lines, short, shows
from tallystick.cli.shown import rows_table
from tallystick.cli.wallet import account_in, open_wallet
from tallystick.provider.folder import (
    KEPT_OF_CHAIN,
    OwnJob,
    ProviderFolder,
    agent_pid,
    agent_session,
    jobs_in,
    keystore_in,
    load_signed,
    note_withdrawn,
)
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import http_url

if TYPE_CHECKING:
    from contracts.chain.connection import Call
    from tallystick.sdk.on_chain import OnChain

R = TypeVar("R")
Rpc = Annotated[
    str | None, typer.Option("--rpc", help="Node of the chain. Default: the market's, as kept.")
]
Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Job ids, or their first eight digits; none: all of the folder.", metavar="JOB"
    ),
]

# --------------------------------------------------------------------------------------- settle


class CallView(Body):
    """A call that anybody may send: `cast send TO DATA`."""

    to: AddressField
    data: SignedField


class SettledJob(Body):
    """What an account has in a job; `earned` and `vested` by the newest seal of the folder."""

    columns: ClassVar[tuple[str, ...]] = (
        "job",
        "step",
        "earned",
        "vested",
        "limit",
        "claimed",
        "paid",
    )

    job: JobIdField
    step: int  # of the seal; 0: the folder has none
    earned: Money
    vested: Money
    limit: Money
    claimed: Money  # before
    paid: Money  # to this account by these calls
    stake: Money  # before
    released: Money  # of the stake, into this account's balance by these calls
    end: int | None  # Unix seconds
    calls: tuple[CallView, ...]
    transactions: tuple[DigestField, ...]  # none of them in a dry run


class Settled(Body):
    """What was claimed, or by a dry run would be, and what is free in the escrow then."""

    rows: ClassVar[str] = "jobs"

    account: AddressField
    dry_run: bool
    rpc: str
    jobs: tuple[SettledJob, ...]
    free: Money  # of the account, in the escrow


def _settled_lines(found: Settled) -> Iterator[RenderableType]:
    yield rows_table("", SettledJob, found.jobs)
    for job in found.jobs:
        for call in job.calls if found.dry_run else ():
            yield f"cast send 0x{call.to.hex()} 0x{call.data.hex()} --rpc-url {found.rpc}"
        for transaction in job.transactions:
            yield f"job {short(job.job)}: transaction 0x{transaction.hex()}"
    yield f"{format_tokens(found.free)} tokens are free in the escrow (`provider withdraw`)"


@shows(Settled, lines=_settled_lines)
def settle_command(
    jobs: Jobs = None, home: ProviderHome = None, rpc: Rpc = None, dry_run: DryRun = False
) -> Settled:
    """Claim what the newest seals in the folder vest for this provider; no market is asked.

    Stake comes free, too, TAIL after the account's end. A running agent does all that by itself. A
    dry run prints each call, which anybody may send.

    Example: tallystick provider settle JOB --rpc http://127.0.0.1:8545
    """
    return _settle(home, rpc, jobs, everybody=False, dry_run=dry_run)


@shows(Settled, lines=_settled_lines)
def settle_all_command(
    jobs: Jobs = None, home: ProviderHome = None, rpc: Rpc = None, dry_run: DryRun = False
) -> Settled:
    """Claim for everybody in the jobs of the folder, the offline too; no market is asked.

    Each is paid into its own balance; this provider pays the gas.

    Example: tallystick provider settle-all JOB --dry-run
    """
    return _settle(home, rpc, jobs, everybody=True, dry_run=dry_run)


def _settle(
    home: Path | None, rpc: str | None, names: list[str] | None, *, everybody: bool, dry_run: bool
) -> Settled:
    folder = provider_home(home)

    async def run(own: "OnChain") -> Settled:
        from tallystick.provider.money import free_of

        jobs = [_named(folder, name) for name in names or ()] or jobs_in(folder)
        found = [await _settle_one(own, job, everybody=everybody, dry_run=dry_run) for job in jobs]
        return Settled(
            account=own.wallet.account,
            dry_run=dry_run,
            rpc=own.network.rpc_url,
            jobs=tuple(found),
            free=await free_of(own, await own.contracts.chain.head()),
        )

    return _on_chain(folder, rpc, run)


async def _settle_one(own: "OnChain", job: OwnJob, *, everybody: bool, dry_run: bool) -> SettledJob:
    from tallystick.provider.money import claim_all_calls, claim_call, positions

    chain, escrow = own.contracts.chain, own.contracts.escrow
    head = await chain.head()
    at = (await positions(own, [job], head))[job.job]
    calls = list[tuple[str, "Call"]]()
    if everybody and at.pay is not None:
        calls += await claim_all_calls(own, job.spec, at)
    elif at.due or at.unshown:
        calls.append(claim_call(own, job.spec, at))
    paid = at.due if calls else BaseUnits(0)
    tail = (await escrow.times(head)).tail
    is_over = at.channel.stake and at.end and await chain.next_time() >= at.end + tail
    if is_over:  # after the claim: what nobody has shown by then is lost by a release
        call = escrow.release(job.job, [at.account])
        calls.append((f"release:{job.job.hex()}:{at.end}", call))
    sent = []
    for key, call in () if dry_run else calls:
        sent.append((await own.sender.send(key, call)).transaction)
    return SettledJob.of(
        at.channel,
        job=job.job,
        step=0 if at.pay is None else at.pay.seal.message.step,
        earned=at.leaf.earned,
        vested=at.leaf.vested,
        paid=paid,
        released=BaseUnits(at.channel.stake if is_over else 0),
        end=at.end or None,
        calls=tuple(CallView(to=call.to, data=call.data) for _, call in calls),
        transactions=tuple(sent),
    )


# ------------------------------------------------------------------------------------------ quit


class HasQuit(Body):
    """A Quit that was signed; a dry run signs none."""

    job: JobIdField
    account: AddressField
    keep: Money  # of the limit: earned, and claimable for good
    given_back: Money  # of the limit, to the poster's budget
    stake: Money
    free_after: int  # Unix seconds: then stake is free
    transaction: DigestField | None  # None: the market relays it, or a dry run


def _quit_lines(found: HasQuit) -> Iterator[str]:
    yield (
        f"job {short(found.job)}: keeps {format_tokens(found.keep)} tokens of the limit, "
        f"{format_tokens(found.given_back)} go back to its budget"
    )
    if found.stake:
        yield (
            f"{format_tokens(found.stake)} tokens of stake are free about "
            f"{moment_here(1000 * found.free_after)}"
        )
    yield from sent_lines(found.transaction)


@shows(HasQuit, lines=_quit_lines)
def quit_command(
    job: Job,
    market: Market = None,
    home: ProviderHome = None,
    rpc: Rpc = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="By a transaction of one's own; no market is asked.")
    ] = False,
    dry_run: DryRun = False,
) -> HasQuit:
    """Leave a job for good: what was earned stays, the unspent limit goes back, stake comes free.

    The market relays the signed order; where it does not answer, a transaction of one's own does.

    Example: tallystick provider quit JOB
    """
    folder, url = provider_home(home), http_url(market_url(market), "a market")

    async def run(own: "OnChain") -> HasQuit:
        from tallystick.provider.money import positions, quit_of, send_quit, sign_quit

        known, chain = _named(folder, job), own.contracts.chain
        at = (await positions(own, [known], await chain.head()))[known.job]
        if not at.can_quit:
            raise errors.Conflict(
                "this account has ended there already" if at.end else "nothing of ours is there"
            )
        times = await own.contracts.escrow.times(await chain.head())
        now, domain = await chain.next_time(), own.contracts.deployment.domain
        if dry_run:
            signed, transaction = quit_of(own.wallet, known.job, at, now, domain), None
        else:
            signed = await sign_quit(own, known, at, times)
            if direct or not await _relayed(url, signed.encoded(), known):
                transaction = await send_quit(own, signed)
            else:
                transaction = None
        kept = min(at.channel.limit, max(signed.message.keep, at.channel.claimed))
        return HasQuit(
            job=known.job,
            account=own.wallet.account,
            keep=BaseUnits(kept),
            given_back=BaseUnits(at.channel.limit - kept),
            stake=BaseUnits(at.channel.stake),
            free_after=now + times.tail,
            transaction=transaction,
        )

    return _on_chain(folder, rpc, run)


async def _relayed(url: str, signed: bytes, job: OwnJob) -> bool:
    """Whether the market took an order."""
    async with MarketClient(url) as client:
        try:
            await client.call(POST_ORDER, PostOrder(signed=signed), job=job.job)
        except (errors.NotFound, errors.Unavailable) as error:
            notice(f"no market relays it ({error}): it is sent directly")
            return False
    return True


# -------------------------------------------------------------------------------------- withdraw


class Withdrawn(Body):
    """What left the escrow, or by a dry run would."""

    account: AddressField
    to: AddressField
    amount: Money
    free: Money  # that stays in the escrow
    transaction: DigestField | None  # None: a dry run


def _withdrawn_lines(found: Withdrawn) -> Iterator[str]:
    would = "would go" if found.transaction is None else "went"
    yield (
        f"{format_tokens(found.amount)} tokens {would} to 0x{found.to.hex()}; "
        f"{format_tokens(found.free)} are free in the escrow"
    )
    yield from sent_lines(found.transaction)


@shows(Withdrawn, lines=_withdrawn_lines)
def withdraw_command(
    amount: Annotated[str, typer.Argument(help="Tokens, as 12.5, or `all` that are free.")],
    to: Annotated[
        str | None, typer.Option("--to", help="Whom to send them to. Default: this account.")
    ] = None,
    home: ProviderHome = None,
    rpc: Rpc = None,
    dry_run: DryRun = False,
) -> Withdrawn:
    """Take free tokens out of the escrow: pay that was claimed, and stake that no job holds.

    Example: tallystick provider withdraw all
    """
    folder = provider_home(home)
    wanted = None if amount == "all" else typed("AMOUNT", amount, read_tokens)
    if wanted is not None and not 0 < wanted <= UINT96_MAX:
        raise errors.Malformed(f"{amount:.80}: a number of tokens above 0, or `all`")
    receiver = None if to is None else parse_address(to)

    async def run(own: "OnChain") -> Withdrawn:
        from tallystick.provider.money import free_of, send_anew

        free = await free_of(own, await own.contracts.chain.head())
        taken = free if wanted is None else wanted
        if taken > free or not taken:
            raise errors.Unaffordable(
                f"{format_tokens(free)} tokens are free in the escrow", wanted=taken, held=free
            )
        transaction: Digest | None = None
        target = receiver or own.wallet.account
        if not dry_run:
            call = own.contracts.escrow.withdraw(target, taken)
            transaction = await send_anew(own, f"withdraw:{target.hex()}:{taken}", call)
        return Withdrawn(
            account=own.wallet.account,
            to=target,
            amount=taken,
            free=BaseUnits(free - taken),
            transaction=transaction,
        )

    return _on_chain(folder, rpc, run)


# --------------------------------------------------------------------------------- the offer


class OfferWithdrawn(Body):
    """The offer that stands no more, or by a dry run would not; None: none stood."""

    account: AddressField
    dry_run: bool
    offer: DigestField | None


def _offer_lines(found: OfferWithdrawn) -> Iterator[str]:
    if found.offer is None:
        yield "no offer stands"
    else:
        would = "would be " if found.dry_run else ""
        yield f"offer {found.offer.hex()[:12]} {would}withdrawn; a lease of it goes on"


@shows(OfferWithdrawn, lines=_offer_lines)
def withdraw_offer_command(
    market: Market = None, home: ProviderHome = None, dry_run: DryRun = False
) -> OfferWithdrawn:
    """Take the standing offer back; a lease of it goes on.

    An agent that runs stays, and offers nothing more; the next `provider start` makes a new offer.

    Example: tallystick provider withdraw-offer
    """
    folder = provider_home(home)
    account = account_in(keystore_in(folder))

    async def run(client: MarketClient) -> OfferWithdrawn:
        offer = await _take_offer_back(client, folder, dry_run=dry_run)
        return OfferWithdrawn(account=account, dry_run=dry_run, offer=offer)

    return ask(market, run)


async def _take_offer_back(client: MarketClient, home: Path, *, dry_run: bool) -> Digest | None:
    offer = load_signed(home, Offer)
    if offer is None:
        return None
    name = offer.message.digest()
    standing = (await client.call(GET_PROVIDER, account=offer.message.account)).offers
    if name not in (each.offer for each in standing):
        return None
    if not dry_run:
        # Noted first: an agent that looks in between must not renew it.
        note_withdrawn(home, offer)
        signature = agent_session(home).private_key.sign(withdrawal_digest(name))
        await client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=name)
    return name


# --------------------------------------------------------------------------------------- chain


def _on_chain(home: Path, rpc: str | None, run: Callable[["OnChain"], Awaitable[R]]) -> R:
    """Run as the account's only sender: the folder is held meanwhile."""

    async def asked() -> R:
        with needs_provider():
            from tallystick.sdk.on_chain import kept_network, on_chain
        network = kept_network(home, rpc)
        if (pid := agent_pid(home)) is not None:
            raise errors.Conflict(
                f"the agent (pid {pid}) uses this account, and claims and leaves by itself: "
                "`tallystick provider drain --wait` first",
                pid=pid,
            )
        folder = ProviderFolder(home)
        try:
            wallet = open_wallet(keystore_in(home))
            async with on_chain(network, wallet, folder.home, notice, KEPT_OF_CHAIN) as own:
                return await run(own)
        finally:
            folder.close()

    return asyncio.run(asked())


def _named(home: Path, text: str) -> OwnJob:
    return one_of({each.job: each for each in jobs_in(home)}, text, str(home))
