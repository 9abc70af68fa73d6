"""`tallystick get`: what a market answers to a GET of its table of routes, whatever it is about."""

from typing import Annotated, Any

import typer

from contracts.terms.errors import Malformed
from market.bodies.base import Body, Part
from market.bodies.routes import TABLE, Route
from tallystick.cli.options import Market, ask, named_job
from tallystick.cli.output import shows
from tallystick.cli.shown import lines_of
from tallystick.sdk.client import MarketClient

KINDS: dict[str, Route[Any]] = {
    name.removeprefix("GET_").lower().replace("_", "-"): route
    for name, route in TABLE.items()
    if name.startswith("GET_") and issubclass(route.answers, Body)
}


@shows(Body, lines=lines_of)
def app(
    kind: Annotated[
        str, typer.Argument(help=f"What: {', '.join(KINDS)}.", metavar="KIND", show_default=False)
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Of which one: its id, as a list shows it.", metavar="[ID]..."),
    ] = None,
    market: Market = None,
    limit: Annotated[
        int, typer.Option("--limit", help="So many rows at most.", min=1, max=1_000_000)
    ] = 1000,
) -> Body:
    """Get one thing of a market, or a list of them, as a table, JSON or CSV.

    Example: tallystick get jobs -o csv
    """
    route = KINDS.get(kind)
    if route is None:
        raise Malformed(f"{kind!r:.80} is no kind; choose one of {', '.join(KINDS)}")
    given = names or []
    if len(given) != len(route.names):
        wanted = " ".join(name.upper() for name in route.names) or "no ID"
        raise Malformed(f"get {kind} wants {wanted}, and {len(given)} were given")

    async def run(client: MarketClient) -> Body:
        named: dict[str, Any] = dict(zip(route.names, given, strict=True))
        if "job" in named:
            named["job"] = await named_job(client, named["job"])
        is_list = issubclass(route.answers, Part)
        found: Body = await (
            client.whole(route, most=limit, **named) if is_list else client.call(route, **named)
        )
        return found

    return ask(market, run)
