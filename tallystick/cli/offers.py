"""`tallystick offers`: what machines are offered, and for how much."""

import typer

from market.bodies.offers import OffersView
from market.bodies.routes import GET_OFFERS
from tallystick.cli.options import Market, ask
from tallystick.cli.output import shows
from tallystick.cli.shown import lines_of

app = typer.Typer(no_args_is_help=True, help="See what machines are offered.")


@app.command("list")
@shows(OffersView, lines=lines_of)
def list_command(market: Market = None) -> OffersView:
    """List the offers that stand or are leased, cheapest first; prices in tokens per PFLOP.

    Example: tallystick offers list -o csv
    """
    return ask(market, lambda client: client.whole(GET_OFFERS))
