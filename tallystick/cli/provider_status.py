"""`tallystick provider status` and `drain`: one's own provider, from another terminal."""

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
from market.bodies.market import StakeView
from market.bodies.offers import LeaseState, OfferView, ReputationView
from market.bodies.routes import GET_ACCOUNT, GET_LEASE, GET_PROVIDER
from tallystick.cli.job_views import reputation_words
from tallystick.cli.keystore import account_in
from tallystick.cli.options import DryRun, Market, ProviderHome, Timeout, ask, provider_home
from tallystick.cli.output import facts, short, shows, table
from tallystick.provider.folder import DRAIN_SIGNAL, agent_pid, keystore_in, leases_in
from tallystick.provider.slashes import audits_in, losses_in
from tallystick.sdk.client import MarketClient

OVER = ("ended", "lapsed")
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
    token: Money
    gas: Wide  # wei
    stake: StakeView
    earned: Money
    vested: Money
    claimable: Money
    claimed: Money
    offers: tuple[OfferView, ...]
    leases: tuple[OwnLease, ...]
    lost: tuple[Lost, ...]  # in the jobs of the newest leases here


def _status_lines(status: ProviderStatus) -> Iterator[RenderableType]:
    rows = {
        "account": f"0x{status.account.hex()}",
        "agent": "not here" if status.pid is None else f"runs, pid {status.pid}",
        "stake": f"{format_tokens(status.stake.active)}, of it reserved "
        f"{format_tokens(status.stake.reserved)}; unbonding "
        f"{format_tokens(status.stake.unbonding)}",
        "holds": f"{format_tokens(status.token)} tokens",
        "earned": format_tokens(status.earned),
        "vested": format_tokens(status.vested),
        "claimable": format_tokens(status.claimable),
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
        columns = ("lease", "job", "state", "#stage", "#price", "#stake")
        yield table(
            "",
            columns,
            (
                (
                    short(each.lease),
                    short(each.job),
                    each.state,
                    each.stage,
                    format_tokens(each.price),
                    format_tokens(each.stake),
                )
                for each in status.leases
            ),
        )


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
    known, money = (
        await client.call(GET_PROVIDER, account=account),
        await client.call(GET_ACCOUNT, account=account),
    )
    return ProviderStatus(
        account=account,
        home=None if home is None else str(home),
        pid=None if home is None else agent_pid(home),
        is_matched=known.is_matched,
        reputation=known.reputation,
        token=money.token,
        gas=money.gas,
        stake=money.stake,
        earned=money.earned,
        vested=money.vested,
        claimable=money.claimable,
        claimed=money.claimed,
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
        if lease.state not in OVER:
            found.append(
                OwnLease(
                    lease=lease.lease,
                    job=lease.job,
                    state=lease.state,
                    stage=lease.stage,
                    price=lease.price,
                    stake=lease.stake,
                )
            )
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
