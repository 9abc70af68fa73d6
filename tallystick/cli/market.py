"""`tallystick market`: what is offered by class, what waits, and what clearing rounds decided."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.terms.amounts import format_tokens
from market.bodies.base import Price
from market.bodies.market import ROUNDS_PAGE, ClassView, ClearingRoundView, DemandView, MarketView
from market.bodies.routes import GET_MARKET, GET_ROUNDS
from tallystick.cli.options import Market, ask
from tallystick.cli.output import moment, short, shows, table
from tallystick.sdk.client import MarketClient

app = typer.Typer(no_args_is_help=True, help="See depth, demand and prices of a market.")


class MarketShown(MarketView):
    """Offers and demand now, and the newest clearing rounds, ascending."""

    rounds: tuple[ClearingRoundView, ...]


def _lines(shown: MarketShown) -> Iterator[RenderableType]:
    yield table(
        f"offers by device class, prices in tokens per PFLOP ({shown.num_classes} classes)",
        ("class", "#open", "#leased", "#least", "#median", "#greatest", "#cleared at"),
        (_class_row(each) for each in shown.classes),
    )
    yield table(
        "jobs that wait",
        ("job", "#slots", "#spares", "#ceiling", "since (UTC)", "why not matched"),
        (_demand_row(each) for each in shown.demand),
    )
    yield table(
        "clearing rounds",
        ("#round", "time (UTC)", "job", "#asks", "#bought", "#price"),
        (_round_row(each) for each in shown.rounds),
    )


def _class_row(each: ClassView) -> tuple[object, ...]:
    least, _, median, _, greatest = each.quartiles or (None,) * 5
    cleared = None if each.cleared is None else each.cleared.price
    prices = map(_price, (least, median, greatest, cleared))
    return each.device_class, each.open, each.leased, *prices


def _demand_row(each: DemandView) -> tuple[object, ...]:
    why = ", ".join(f"{it.offers} by {it.constraint}" for it in each.not_matched)
    ceiling = _price(each.ceiling)
    return short(each.job), each.slots, each.spares, ceiling, moment(each.since), why


def _round_row(each: ClearingRoundView) -> tuple[object, ...]:
    bought = f"{len(each.winners)} of {each.slots}+{each.spares}"
    at, price = moment(each.at), _price(each.price)
    return each.number, at, short(each.job), each.asks, bought, price


def _price(price: Price | None) -> str:
    return "" if price is None else format_tokens(price)


@app.command("show")
@shows(MarketShown, lines=_lines, rows="rounds")
def show_command(
    market: Market = None,
    rounds: Annotated[
        int,
        typer.Option("--rounds", help="So many of the newest rounds.", min=1, max=ROUNDS_PAGE),
    ] = 20,
) -> MarketShown:
    """Show offers by device class, prices, the jobs that wait and why, and what rounds decided.

    Example: tallystick market show --rounds 100 -o csv
    """

    async def run(client: MarketClient) -> MarketShown:
        view = await client.call(GET_MARKET)
        newest = await client.call(GET_ROUNDS, limit=rounds)
        return MarketShown(**dict(view), rounds=newest.rounds)

    return ask(market, run)
