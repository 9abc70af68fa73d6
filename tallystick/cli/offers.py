"""`tallystick offers`: what machines are offered, and for how much."""

import typer
from rich.table import Table

from contracts.terms.amounts import format_tokens
from market.bodies.offers import OffersView
from market.bodies.routes import GET_OFFERS
from tallystick.cli.options import Market, ask
from tallystick.cli.output import short, shows, table

app = typer.Typer(no_args_is_help=True, help="See what machines are offered.")


@app.callback()
def offers() -> None:
    """See what machines are offered."""


def _table(view: OffersView) -> Table:
    columns = ("offer", "account", "state", "#price", "#MiB", "#GFLOP/s", "device")
    return table(
        "",
        columns,
        (
            (
                short(each.offer),
                short(each.account),
                each.state,
                format_tokens(each.price),
                each.memory_bytes // 2**20,
                each.flops_per_second // 10**9,
                each.device_class,
            )
            for each in view.offers
        ),
    )


@app.command("list")
@shows(OffersView, lines=lambda view: [_table(view)], rows="offers")
def list_command(market: Market = None) -> OffersView:
    """List the offers that stand or are leased, cheapest first; prices in tokens per PFLOP.

    Example: tallystick offers list -o csv
    """
    return ask(market, lambda client: client.whole(GET_OFFERS))
