"""`tallystick epoch`: settlements, what each took from jobs and granted to accounts."""

from typing import Annotated

import typer

from market.bodies.routes import GET_EPOCH, GET_EPOCHS
from market.bodies.settlement import EpochsView, EpochView
from tallystick.cli.options import Market, ask
from tallystick.cli.output import shows
from tallystick.cli.shown import lines_of

app = typer.Typer(no_args_is_help=True, help="See settlements: what was paid for what, and when.")


@app.callback()
def epoch() -> None:
    """See settlements: what was paid for what, and when."""


@app.command("list")
@shows(EpochsView, lines=lines_of)
def list_command(market: Market = None) -> EpochsView:
    """List epochs, newest first: state, what all accounts are granted, until when it is open.

    Example: tallystick epoch list
    """
    return ask(market, lambda client: client.call(GET_EPOCHS))


@app.command("show")
@shows(EpochView, lines=lines_of, rows="leaves")
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
