"""`tallystick epoch`: settlements, what each took from jobs and granted to accounts."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from contracts.terms.amounts import format_tokens
from market.bodies.routes import GET_EPOCH, GET_EPOCHS
from market.bodies.settlement import EpochSummary, EpochsView, EpochView
from tallystick.cli.options import Market, ask
from tallystick.cli.output import facts, moment, short, shows, table

app = typer.Typer(no_args_is_help=True, help="See settlements: what was paid for what, and when.")


@app.callback()
def epoch() -> None:
    """See settlements: what was paid for what, and when."""


def _table(view: EpochsView) -> Table:
    columns = ("#epoch", "state", "#sum so far", "window ends (UTC)", "transaction")
    return table(
        "",
        columns,
        (
            (each.epoch, each.state, format_tokens(each.sum), _ends(each), _transaction(each))
            for each in view.epochs
        ),
    )


def _ends(each: EpochSummary) -> str:
    return "" if each.window_ends is None else moment(1000 * each.window_ends)


def _transaction(each: EpochSummary) -> str:
    return "" if each.transaction is None else f"0x{short(each.transaction)}"


@app.command("list")
@shows(EpochsView, lines=lambda view: [_table(view)], rows="epochs")
def list_command(market: Market = None) -> EpochsView:
    """List epochs, newest first: state, what all accounts are granted, until when it is open.

    Example: tallystick epoch list
    """
    return ask(market, lambda client: client.call(GET_EPOCHS))


def _lines(view: EpochView) -> Iterator[RenderableType]:
    rows = {
        "state": view.state,
        "root": view.root.hex(),
        "sum so far": format_tokens(view.sum),
        "window ends": _ends(view) or "not posted yet",
    }
    if view.transaction is not None:
        rows["transaction"] = f"0x{view.transaction.hex()}"
    yield facts(f"epoch {view.epoch}", rows)
    yield table(
        "taken from jobs",
        ("job", "#tokens", "#step", "seal"),
        ((short(d.job), format_tokens(d.amount), d.step, short(d.seal)) for d in view.debits),
    )
    yield table(
        "granted to accounts, in all epochs so far",
        ("account", "#tokens", "#jobs"),
        (
            (f"0x{leaf.account.hex()}", format_tokens(leaf.cumulative), len(leaf.jobs))
            for leaf in view.leaves
        ),
    )


@app.command("show")
@shows(EpochView, lines=_lines, rows="leaves")
def show_command(
    number: Annotated[
        int, typer.Argument(help="Number of the epoch.", min=1, max=2**47, metavar="EPOCH")
    ],
    market: Market = None,
) -> EpochView:
    """Show an epoch: what it takes from each job by which seal, what each account is granted.

    Example: tallystick epoch show 3
    """
    return ask(market, lambda client: client.call(GET_EPOCH, number=number))
