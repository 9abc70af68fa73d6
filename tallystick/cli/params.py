"""`tallystick params`: the protocol's numbers, as the market's chain has them."""

from collections.abc import Iterator

import typer
from rich.console import RenderableType

from contracts.terms.ids import AddressField
from market.bodies.base import Body, Wide
from market.bodies.market import NetworkView
from market.bodies.routes import GET_NETWORK
from tallystick.cli.options import Market, ask
from tallystick.cli.output import facts, shows, table

app = typer.Typer(no_args_is_help=True, help="See the protocol's numbers of a market.")

_UNITS = {"_ppm": "1e-6", "_bps": "1e-4", "_steps": "steps", "_cap": "base units"}


@app.callback()
def params() -> None:
    """See the protocol's numbers of a market."""


class Parameter(Body):
    """One number and what it counts."""

    name: str
    value: Wide
    unit: str


class Parameters(Body):
    """What contract `Parameters` holds, and where it is."""

    chain_id: int
    embedded: bool
    settlement: AddressField
    contract: AddressField
    parameters: tuple[Parameter, ...]


def _lines(found: Parameters) -> Iterator[RenderableType]:
    rows = {
        "chain": f"{found.chain_id}{', embedded' if found.embedded else ''}",
        "Settlement": f"0x{found.settlement.hex()}",
        "Parameters": f"0x{found.contract.hex()}",
    }
    yield facts("", rows)
    yield table(
        "", ("name", "#value", "unit"), ((p.name, p.value, p.unit) for p in found.parameters)
    )


@app.command("show")
@shows(Parameters, lines=_lines, rows="parameters")
def show_command(market: Market = None) -> Parameters:
    """Show the numbers that contracts keep to: windows, delays, rates of audits.

    Example: tallystick params show
    """
    network = ask(market, lambda client: client.call(GET_NETWORK))
    return _parameters(network)


def _parameters(network: NetworkView) -> Parameters:
    return Parameters(
        chain_id=network.chain_id,
        embedded=network.embedded,
        settlement=network.contracts.settlement,
        contract=network.contracts.parameters,
        parameters=tuple(
            Parameter(name=name, value=value, unit=unit_of(name))
            for name, value in network.parameters.items()
        ),
    )


def unit_of(name: str) -> str:
    """What a parameter counts; its name says it."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "seconds")
