"""`tallystick provider status`, `drain` and `earnings`: one's own provider, from another terminal.

Each line of what it earned is told from the work to the transaction, or why it waits.
"""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.terms.amounts import format_tokens
from contracts.terms.errors import DeadlineExceeded, NotFound
from contracts.terms.ids import Address, AddressField, DigestField, JobIdField
from contracts.terms.typed_names import parse_address
from market.bodies.base import Body, Money, Price, Wide
from market.bodies.earnings import EarningsView, EarningView, PartsView
from market.bodies.offers import LeaseState, OfferView, ReputationView
from market.bodies.routes import GET_ACCOUNT, GET_EARNINGS, GET_LEASE, GET_PROVIDER
from tallystick.cli import job_trail
from tallystick.cli.job_views import reputation_words
from tallystick.cli.options import (
    DryRun,
    Market,
    ProviderHome,
    Timeout,
    ask,
    named_job,
    provider_home,
)
from tallystick.cli.output import facts, short, shows, table
from tallystick.cli.shown import rows_table
from tallystick.cli.wallet import account_in
from tallystick.provider.disk import LEASE_OVER
from tallystick.provider.folder import DRAIN_SIGNAL, agent_pid, keystore_in, leases_in
from tallystick.provider.slashes import audits_in, losses_in
from tallystick.sdk.client import MarketClient

# ---------------------------------------------------------------------------------------- earnings


def _lines(view: EarningsView) -> Iterator[RenderableType]:
    yield facts(f"earned by 0x{view.account.hex()}", dict(_parts(view.parts)))
    if not view.lines:
        yield "no line"
        return
    yield table(
        "",
        ("what", "#tokens", "state", "by what, or what it waits for"),
        (
            (_what(line), format_tokens(line.amount), line.state, tuple(_trail(line)))
            for line in view.lines
        ),
    )
    if view.next is not None:
        yield f"more: --after {view.next}"


def _parts(parts: PartsView) -> Iterator[tuple[str, str]]:
    for name, amount, what in (
        ("waiting", parts.waiting, "sealed, and not vested"),
        ("frozen", parts.frozen, "held by an open case"),
        ("forfeited", parts.forfeited, "lost: it never vests"),
        ("vested", parts.vested, "may be claimed"),
        ("over the limit", parts.over_limit, "vested, and paid once the limit is raised"),
        ("claimed", parts.claimed, "in the account's balance in the escrow"),
    ):
        yield name, f"{'ask for one --job' if amount is None else format_tokens(amount)}: {what}"


def _what(line: EarningView) -> tuple[str, ...]:
    repeated = f", claim {line.seq + 1}" if line.seq else ""
    return (
        f"{line.kind} {short(line.subject)}",
        f"job {short(line.job)}",
        f"step {line.step}, stage {line.stage}{repeated}, {line.units} units",
    )


def _trail(line: EarningView) -> Iterator[str]:
    seal = "" if line.seal is None else f" {short(line.seal)}"
    yield f"seal of step {line.sealed}{seal}"
    yield job_trail.anchored(line.anchor)
    yield job_trail.drawn(line.draw)
    if line.vested is not None:
        yield f"decided by the seal of step {line.vested}"
    yield from map(job_trail.claimed, line.claims)
    yield from job_trail.waits(line.waits_for)


@shows(EarningsView, lines=_lines)
def earnings_command(
    market: Market = None,
    home: ProviderHome = None,
    account: Annotated[
        str | None, typer.Option("--account", help="Whose; default: this provider's.")
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Of this job alone: its id, or first digits.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", help="Lines beyond this one: its `cursor`.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", help="So many lines at most.", min=1, max=1_000_000)
    ] = 1000,
) -> EarningsView:
    """Show what was earned, line by line: peer-step, seal, root, draw, verdict, transaction.

    A line that is not paid yet says what it waits for and what ends that. `job trace JOB STEP PEER`
    shows one with every Merkle path.

    Example: tallystick provider earnings --job JOB -o csv
    """
    who = _account(account, home)

    async def run(client: MarketClient) -> EarningsView:
        wanted = None if job is None else await named_job(client, job)
        return await client.whole(GET_EARNINGS, most=limit, account=who, job=wanted, after=after)

    return ask(market, run)


def _account(account: str | None, home: Path | None) -> Address:
    return parse_address(account) if account else account_in(keystore_in(provider_home(home)))


MAX_LEASES = 50  # that are asked for, the newest
_POLL_SECONDS = 0.5


# -------------------------------------------------------------------------------------- status


class OwnLease(Body):
    """A lease that is not over."""

    lease: DigestField
    job: JobIdField
    state: LeaseState
    stage: int
    price: Price
    stake: Money


class Lost(Body):
    """Pay of a job that is forfeited, and why."""

    job: JobIdField
    amount: Money
    reason: str


class ProviderStatus(Body):
    """An account as a provider; `pid` of its agent, and its leases, where it lives here."""

    account: AddressField
    home: str | None
    pid: int | None
    is_matched: bool
    reputation: ReputationView
    token: Money  # in the wallet
    gas: Wide  # wei
    free: Money  # in the escrow
    bonded: Money  # in jobs
    earned: Money
    vested: Money
    due: Money  # may be claimed
    claimed: Money
    offers: tuple[OfferView, ...]
    leases: tuple[OwnLease, ...]
    lost: tuple[Lost, ...]  # in the jobs of the newest leases here


def _status_lines(status: ProviderStatus) -> Iterator[RenderableType]:
    rows = {
        "account": f"0x{status.account.hex()}",
        "agent": "not here" if status.pid is None else f"runs, pid {status.pid}",
        "in the escrow": f"{format_tokens(status.free)} free, "
        f"{format_tokens(status.bonded)} bonded",
        "holds": f"{format_tokens(status.token)} tokens",
        "earned": format_tokens(status.earned),
        "vested": format_tokens(status.vested),
        "claimable": format_tokens(status.due),
        "claimed": format_tokens(status.claimed),
        "reputation": reputation_words(status.reputation),
        "is matched": "yes" if status.is_matched else "no: worse than a stranger",
    }
    for offer in status.offers:
        rows[f"offer {offer.offer.hex()[:8]}"] = (
            f"{offer.state} at {format_tokens(offer.price)} tokens/PFLOP"
        )
    for each in status.lost:
        rows[f"forfeited, job {short(each.job)}"] = (
            f"{format_tokens(each.amount)} tokens: {each.reason}"
        )
    yield facts("", rows)
    if status.leases:
        yield rows_table("", OwnLease, status.leases)


@shows(ProviderStatus, lines=_status_lines)
def status_command(
    account: Annotated[
        str | None, typer.Option("--account", help="Somebody's, instead of the one in --home.")
    ] = None,
    market: Market = None,
    home: ProviderHome = None,
) -> ProviderStatus:
    """Show a provider: its agent, leases, offers, stake, money and reputation.

    Example: tallystick provider status
    """
    if account is not None:
        named = parse_address(account)
        return ask(market, lambda client: _status(client, named, None))
    folder = provider_home(home)
    own = account_in(keystore_in(folder))
    return ask(market, lambda client: _status(client, own, folder))


async def _status(client: MarketClient, account: Address, home: Path | None) -> ProviderStatus:
    known = await client.call(GET_PROVIDER, account=account)
    money = await client.call(GET_ACCOUNT, account=account)
    return ProviderStatus.of(
        money,
        account=account,
        home=None if home is None else str(home),
        pid=None if home is None else agent_pid(home),
        is_matched=known.is_matched,
        reputation=known.reputation,
        offers=known.offers,
        leases=() if home is None else await _leases(client, home),
        lost=() if home is None else await _lost(client, account, home),
    )


async def _lost(client: MarketClient, account: Address, home: Path) -> tuple[Lost, ...]:
    jobs = dict.fromkeys(audit.job for audit in audits_in(home))
    found = []
    for job in list(jobs)[-MAX_LEASES:]:
        try:
            losses = await losses_in(client, account, job)
        except NotFound:  # of another market
            continue
        found += [Lost(job=job, amount=lost, reason=why) for why, lost in losses.items()]
    return tuple(found)


async def _leases(client: MarketClient, home: Path) -> tuple[OwnLease, ...]:
    found = []
    for name in leases_in(home)[:MAX_LEASES]:
        try:
            lease = await client.call(GET_LEASE, lease=name)
        except NotFound:  # of another market
            continue
        if lease.state not in LEASE_OVER:
            found.append(OwnLease.of(lease))
    return tuple(found)


# --------------------------------------------------------------------------------------- drain


class Drained(Body):
    """An agent that was told to let its peers leave; without a pid none runs there."""

    home: str
    pid: int | None
    ended: bool


def _drained_lines(drained: Drained) -> list[str]:
    if drained.pid is None:
        return [f"no agent runs in {drained.home}"]
    if drained.ended:
        return [f"the agent in {drained.home} (pid {drained.pid}) has ended"]
    return [f"the agent in {drained.home} (pid {drained.pid}) lets its peers leave, and ends"]


@shows(Drained, lines=_drained_lines)
def drain_command(
    home: ProviderHome = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until the agent has ended.")] = False,
    timeout: Timeout = 600,
    dry_run: DryRun = False,
) -> Drained:
    """Tell the running agent to let its peers leave their jobs in order, and to end.

    Asked again it hurries nobody. How long peers may take is `provider start --drain`.

    Example: tallystick provider drain --wait
    """
    folder = provider_home(home)
    if not folder.is_dir():
        raise NotFound(f"{folder} is no folder; name the one of `provider start` with --home")
    pid = agent_pid(folder)
    if pid is None or dry_run:
        return Drained(home=str(folder), pid=pid, ended=False)
    try:
        os.kill(pid, DRAIN_SIGNAL)
    except ProcessLookupError:
        return Drained(home=str(folder), pid=pid, ended=True)
    if wait:
        _until_ended(folder, pid, timedelta(seconds=timeout))
    return Drained(home=str(folder), pid=pid, ended=wait)


def _until_ended(home: Path, pid: int, timeout: timedelta) -> None:
    ends = time.monotonic() + timeout.total_seconds()
    while agent_pid(home) == pid:
        if time.monotonic() > ends:
            raise DeadlineExceeded(f"the agent (pid {pid}) still lets its peers leave", pid=pid)
        time.sleep(_POLL_SECONDS)
