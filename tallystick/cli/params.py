"""`tallystick params`: the protocol's numbers, as the market's chain has them."""

import typer

from contracts.terms.ids import AddressField
from market.bodies.base import Body, Wide
from market.bodies.routes import GET_NETWORK
from tallystick.cli.options import Market, ask
from tallystick.cli.output import shows
from tallystick.cli.shown import lines_of

app = typer.Typer(no_args_is_help=True, help="See the protocol's numbers of a market.")

_UNITS = {"_ppm": "1e-6", "_steps": "steps"}


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


@app.command("show")
@shows(Parameters, lines=lines_of, rows="parameters")
def show_command(market: Market = None) -> Parameters:
    """Show the times that the escrow keeps to, and the numbers that jobs are checked against.

    Example: tallystick params show
    """
    network = ask(market, lambda client: client.call(GET_NETWORK))
    return Parameters.of(
        network,
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
