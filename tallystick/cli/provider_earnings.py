"""`tallystick provider earnings`: each line from the work to the transaction, or why it waits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.terms.amounts import format_tokens
from contracts.terms.ids import Address
from contracts.terms.typed_names import parse_address
from market.bodies.earnings import EarningsView, EarningView, PartsView
from market.bodies.routes import GET_EARNINGS
from tallystick.cli import trail
from tallystick.cli.keystore import account_in
from tallystick.cli.options import Market, ProviderHome, ask, named_job, provider_home
from tallystick.cli.output import facts, short, shows, table
from tallystick.provider.folder import keystore_in
from tallystick.sdk.client import MarketClient


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
        ("forfeited", parts.forfeited, "lost"),
        ("vested", parts.vested, "in no epoch yet"),
        ("debited", parts.debited, "in an epoch whose window is open"),
        ("final", parts.final, "may be claimed"),
        ("claimed", parts.claimed, "in the wallet"),
    ):
        yield name, f"{'ask for one --job' if amount is None else format_tokens(amount)}: {what}"


def _what(line: EarningView) -> tuple[str, ...]:
    repeated = f", round {line.round}" if line.round else ""
    return (
        f"{line.kind} {short(line.subject)}",
        f"job {short(line.job)}",
        f"step {line.step}, stage {line.stage}{repeated}, {line.units} units",
    )


def _trail(line: EarningView) -> Iterator[str]:
    seal = "" if line.seal is None else f" {short(line.seal)}"
    yield f"seal of step {line.sealed}{seal}"
    yield trail.anchored(line.anchor)
    yield trail.drawn(line.draw)
    if line.vested is not None:
        yield f"decided by the seal of step {line.vested}"
    yield from map(trail.paid, line.paid)
    yield from trail.waits(line.waits_for)


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
    """Show what was earned, line by line: peer-step, seal, root, draw, verdict, epoch, transaction.

    A line that is not paid yet says what it waits for and until when. `job trace JOB STEP PEER`
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
