"""`tallystick deploy`: put the contracts on a chain that is not the embedded one."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import Malformed


def app(
    rpc: Annotated[str, typer.Option("--rpc", help="JSON-RPC endpoint of the chain.")],
    keys: Annotated[Path, typer.Option("--keys", help="Folder of the role keystores.")],
    out: Annotated[Path, typer.Option("--out", help="Deployment file to write.")],
    parameters: Annotated[
        str, typer.Option("--parameters", help='Changes as JSON, e.g. {"epoch_length": 3600}.')
    ] = "{}",
) -> None:
    """Put the contracts on another chain; `up` uses them by TALLYSTICK_CONTRACTS=FILE.

    The account in KEYS/deployer.json pays the gas; missing keystores are made. Interrupted, the
    same command goes on where it stopped.
    """
    from contracts.chain.deploy import DeploySettings, run  # web3: not for --help
    from tallystick.sdk.urls import http_url

    settings = DeploySettings(
        rpc_url=http_url(rpc, "a node"),
        keys=keys,
        contracts=out,
        chain_parameters=_changes(parameters),
    )
    deployment = asyncio.run(run(settings))
    typer.echo(f"0x{deployment.settlement.hex()}")


def _changes(text: str) -> dict[str, int]:
    try:
        changes = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"--parameters is not JSON: {error}") from error
    if not isinstance(changes, dict) or not all(type(each) is int for each in changes.values()):
        raise Malformed('--parameters is an object of whole numbers, e.g. {"epoch_length": 3600}')
    return changes
