"""`tallystick audit anchor`: which hash does a node give to the block that a file is pinned to?

What `audit verify --anchor` wants is a hash from a node that its reader trusts. The node is asked
for it by number; nothing that the file says of itself is taken.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from contracts.http_clients import server_of
from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainUnreachable, Refused
from contracts.terms.ids import DigestField
from market.bodies.base import Body
from market.bodies.routes import GET_NETWORK
from tallystick.cli.files import read
from tallystick.cli.options import Market, ask
from tallystick.cli.output import notice, shows
from tallystick.sdk.client import MarketClient
from tallystick.sdk.http import http_url
from verification.audit.audit_file import MAX_FILE_BYTES, read_file
from verification.audit.collecting import read_header


class Anchor(Body):
    """The block that a file is pinned to, as a node knows it."""

    node: str
    chain_id: int
    block_number: int
    block_hash: DigestField


@shows(Anchor, lines=lambda anchor: [f"0x{anchor.block_hash.hex()}"])
def anchor_command(
    file: Annotated[Path, typer.Argument(help="Audit file.")],
    rpc: Annotated[
        str | None, typer.Option(help="URL of your own node; else the one that the market names.")
    ] = None,
    market: Market = None,
) -> Anchor:
    """Ask a node for the hash of the block that an audit file is pinned to.

    The hash is worth as much as the node: name one of your own with --rpc.

    Exit codes: 0, or 12 if the file cannot be read as an audit file.

    Example: tallystick audit anchor job.tally --rpc http://127.0.0.1:8545
    """
    if rpc is not None:
        return asyncio.run(_anchor(file, http_url(rpc, "a node")))
    return ask(market, lambda client: _as_the_market_says(file, client))


async def _as_the_market_says(file: Path, client: MarketClient) -> Anchor:
    named = http_url((await client.call(GET_NETWORK)).rpc_url, "a node")
    notice(f"asked {named}, the market's own node; name yours with --rpc")
    return await _anchor(file, named)


async def _anchor(file: Path, url: str) -> Anchor:
    async with JsonRpc(url) as node:
        chain_id = await _chain_id(node)
        held = read_file(read(file, MAX_FILE_BYTES))
        if held.domain.chain_id != chain_id:
            raise Refused(
                f"{server_of(url)} is of chain {chain_id}, {file} of {held.domain.chain_id}"
            )
        header = await read_header(node, held.snapshots[-1].header.number)
    return Anchor(node=url, chain_id=chain_id, block_number=header.number, block_hash=header.hash)


async def _chain_id(node: JsonRpc) -> int:
    found = await node.request("eth_chainId", [])
    try:
        return int(found, 16)
    except (TypeError, ValueError) as error:
        raise ChainUnreachable(f"{server_of(node.url)} names no chain") from error
