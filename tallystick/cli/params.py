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

_UNITS = {"_ppm": "1e-6", "_steps": "steps"}


@app.callback()
def params() -> None:
    """See the protocol's numbers of a market."""


class Parameter(Body):
    """One number and what it counts."""

    name: str
    value: Wide
    unit: str


class Parameters(Body):
    """What contract `Parameters` holds, the times of the escrow, and where contracts are."""

    chain_id: int
    embedded: bool
    escrow: AddressField
    seals: AddressField
    contract: AddressField
    parameters: tuple[Parameter, ...]


def _lines(found: Parameters) -> Iterator[RenderableType]:
    rows = {
        "chain": f"{found.chain_id}{', embedded' if found.embedded else ''}",
        "JobEscrow": f"0x{found.escrow.hex()}",
        "SealAnchor": f"0x{found.seals.hex()}",
        "Parameters": f"0x{found.contract.hex()}",
    }
    yield facts("", rows)
    yield table(
        "", ("name", "#value", "unit"), ((p.name, p.value, p.unit) for p in found.parameters)
    )


@app.command("show")
@shows(Parameters, lines=_lines, rows="parameters")
def show_command(market: Market = None) -> Parameters:
    """Show the times that the escrow keeps to, and the numbers that jobs are checked against.

    Example: tallystick params show
    """
    network = ask(market, lambda client: client.call(GET_NETWORK))
    return _parameters(network)


def _parameters(network: NetworkView) -> Parameters:
    return Parameters(
        chain_id=network.chain_id,
        embedded=network.embedded,
        escrow=network.contracts.escrow,
        seals=network.contracts.seals,
        contract=network.contracts.parameters,
        parameters=tuple(
            Parameter(name=name, value=value, unit=unit_of(name))
            for name, value in {**network.times.model_dump(), **network.parameters}.items()
        ),
    )


def unit_of(name: str) -> str:
    """What a parameter counts; its name says it."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "seconds")
