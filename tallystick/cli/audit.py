"""`tallystick audit`: export a job's audit file; verify one offline.

`verify` opens no socket and needs the base dependencies only. Its exit codes: 0 everything fits and
leads to the reader's own block hash and contract, 10 everything fits but the reader named none, 11
something does not fit.
"""

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from contracts.chain.layout import shipped
from contracts.terms.errors import AuditMismatch, Malformed, NotFound, Refused, TooLarge
from contracts.terms.ids import Address, Digest, JobId
from tallystick.audit import report
from verification.audit_file import MAX_FILE_BYTES, verify
from verification.snapshots import SHIPPED_AS

app = typer.Typer(no_args_is_help=True, help="Export a job's audit file; verify one offline.")

EXIT_UNANCHORED = 10
EXIT_MISMATCH = 11


@app.command("verify")
def verify_command(
    file: Annotated[Path, typer.Argument(help="Audit file.")],
    anchor: Annotated[
        str | None, typer.Option(help="Block hash that you got from a node you trust.")
    ] = None,
    settlement: Annotated[
        str | None, typer.Option(help="Address of Settlement, from a source you trust.")
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """Check everything that was signed, anchored and paid in a job, offline.

    Exit codes: 0 anchored, 10 self-consistent but unanchored, 11 mismatch.

    Example: tallystick audit verify job.tally --anchor 0x... --settlement 0x...
    """
    if output not in ("table", "json"):
        raise Malformed(f"-o {output}: choose table or json")
    if (anchor is None) != (settlement is None):
        raise Malformed("--anchor and --settlement belong together: give both, or neither")
    own_block = None if anchor is None else Digest(_hex(anchor, 32, "--anchor"))
    own_contract = None if settlement is None else Address(_hex(settlement, 20, "--settlement"))
    ships = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}
    try:
        verdict = verify(_read(file), ships, anchor=own_block, settlement=own_contract)
    except AuditMismatch as error:
        typer.echo(f"mismatch: {error.message}", err=True)
        raise typer.Exit(EXIT_MISMATCH) from error
    if output == "json":
        typer.echo(json.dumps(report.data(verdict), indent=2))
    else:
        typer.echo("\n".join(report.lines(verdict)))
    if not verdict.anchored:
        raise typer.Exit(EXIT_UNANCHORED)


@app.command("export")
def export_command(
    job: Annotated[str, typer.Argument(help="Job id (64 hexadecimal digits).")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
    market: Annotated[str | None, typer.Option(help="URL of the market.")] = None,
    rpc: Annotated[
        str | None, typer.Option(help="URL of a node; else the one that the market names.")
    ] = None,
) -> None:
    """Write a job's audit file, pinned to the newest block that is proved.

    The last line names the pinned block; a reader takes its hash from a node of his own.

    Example: tallystick audit export JOB -o job.tally
    """
    from tallystick.audit.export import SHIPS, export
    from tallystick.audit.rpc import JsonRpc
    from tallystick.sdk.client import MarketClient
    from tallystick.sdk.folders import HomeSettings
    from tallystick.sdk.urls import http_url

    wanted = JobId(_hex(job, 32, "JOB"))

    async def run() -> tuple[bytes, Digest, int]:
        async with MarketClient(HomeSettings().market if market is None else market) as client:
            named = (await client.network()).rpc_url if rpc is None else rpc
            url = http_url(named, "a node")
            async with JsonRpc(url) as node:
                file = await export(client, node, wanted)
        header = file.snapshots[-1].header
        data = file.encoded()
        verify(data, SHIPS, anchor=header.hash, settlement=file.domain.settlement)
        return data, header.hash, header.number

    try:
        data, block_hash, number = asyncio.run(run())
    except AuditMismatch as error:
        typer.echo(f"the market's records do not fit: {error.message}", err=True)
        raise typer.Exit(EXIT_MISMATCH) from error
    _write(out, data)
    typer.echo(f"wrote {out} ({len(data)} bytes), pinned to block {number} 0x{block_hash.hex()}")


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a device may never end
            raise Refused(f"cannot read {path}: it is no file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no audit file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise TooLarge(f"{path} is larger than any audit file ({MAX_FILE_BYTES} bytes)")
    return data


def _write(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _hex(text: str, length: int, what: str) -> bytes:
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise Malformed(f"{what} {text!r:.80} is not hexadecimal") from error
    if len(data) != length:
        raise Malformed(f"{what} has {2 * length} hexadecimal digits, this one has {2 * len(data)}")
    return data
