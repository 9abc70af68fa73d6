"""`tallystick deploy`: put the contracts on a chain that is not the embedded one."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import Malformed
from contracts.terms.ids import AddressField
from market.bodies.base import Body
from market.bodies.market import ContractsView
from tallystick.cli.output import shows


class Deployed(Body):
    """Where the contracts are, and the file that says so to `up`."""

    file: str
    chain_id: int
    block: int
    escrow: AddressField
    contracts: ContractsView


@shows(Deployed, lines=lambda deployed: [f"0x{deployed.escrow.hex()}"])
def app(
    rpc: Annotated[str, typer.Option("--rpc", help="JSON-RPC endpoint of the chain.")],
    keys: Annotated[Path, typer.Option("--keys", help="Folder of the role keystores.")],
    to: Annotated[Path, typer.Option("--to", help="Deployment file to write.", metavar="FILE")],
    parameters: Annotated[
        str,
        typer.Option("--parameters", help='Changes as JSON, e.g. {"notice_period": 86400}.'),
    ] = "{}",
    times: Annotated[
        str,
        typer.Option(
            "--times",
            help="Margin, announce, execute and tail of the escrow in seconds, as JSON, e.g. "
            '{"tail": 1209600}; no shorter than 1, 2, 1 and 7 days but on a development chain.',
        ),
    ] = "{}",
) -> Deployed:
    """Put the contracts on another chain; `up` uses them by TALLYSTICK_CONTRACTS=FILE.

    The account in KEYS/deployer.json pays the gas; missing keystores are made. Interrupted, the
    same command goes on where it stopped.

    Example: tallystick deploy --rpc http://127.0.0.1:8545 --keys keys --to contracts.json
    """
    from contracts.chain.deploy import DeploySettings, run  # web3: not for --help
    from contracts.chain.deployment import NAMES
    from tallystick.sdk.http import http_url

    settings = DeploySettings(
        rpc_url=http_url(rpc, "a node"),
        keys=keys,
        contracts=to,
        chain_parameters=_changes("--parameters", parameters),
        escrow_times=_changes("--times", times),
    )
    made = asyncio.run(run(settings))
    return Deployed(
        file=str(to),
        chain_id=made.chain_id,
        block=made.block,
        escrow=made.escrow,
        contracts=ContractsView(**{name: getattr(made, name) for name in NAMES}),
    )


def _changes(option: str, text: str) -> dict[str, int]:
    try:
        changes = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{option} is not JSON: {error}") from error
    if not isinstance(changes, dict) or not all(type(each) is int for each in changes.values()):
        raise Malformed(f'{option} is an object of whole numbers, e.g. {{"tail": 1209600}}')
    return changes
