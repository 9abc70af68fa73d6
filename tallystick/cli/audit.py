"""`tallystick audit`: export a job's audit file; verify one offline; run an audit again.

`verify` opens no socket and needs the base dependencies only. Its exit codes: 0 everything fits and
leads to the reader's own block hash and contract, 10 everything fits but the reader named none, 11
something does not fit. `rerun` opens none either and needs torch: 0 this machine confirms what the
auditor says, 10 it does not, 11 no valid bundle.
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from contracts.chain.layout import shipped
from contracts.terms.errors import AuditMismatch, Malformed, WrongConfiguration
from contracts.terms.ids import Address, Digest, JobId
from tallystick.audit import outcome, report
from tallystick.cli.equivocation import compare_command, equivocation_command
from tallystick.cli.files import read, write
from verification.audit_file import MAX_FILE_BYTES, verify
from verification.snapshots import SHIPPED_AS

app = typer.Typer(
    no_args_is_help=True,
    help="Export a job's audit file; verify one offline; run an audit again.",
)

EXIT_UNANCHORED = 10
EXIT_NOT_CONFIRMED = 10
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
        verdict = verify(
            read(file, MAX_FILE_BYTES), ships, anchor=own_block, settlement=own_contract
        )
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
    write(out, data)
    typer.echo(f"wrote {out} ({len(data)} bytes), pinned to block {number} 0x{block_hash.hex()}")


@app.command("rerun")
def rerun_command(
    file: Annotated[Path, typer.Argument(help="Evidence bundle.", metavar="BUNDLE")],
    json_output: Annotated[bool, typer.Option("--json", help="The outcome for programs.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads to compute on.", min=1, max=1024)] = 1,
    device: Annotated[str, typer.Option(help="Device to compute on, as torch names it.")] = "cpu",
) -> None:
    """Run an audit again from its evidence bundle, offline: is the auditor's verdict confirmed?

    Needs torch, and memory for two copies of the stage's weights.

    Exit codes: 0 confirmed here, 10 not confirmed here, 11 no valid bundle.

    Example: tallystick audit rerun 0f3a.bundle --threads 4
    """
    try:
        from tallystick.audit.rerun import rerun
        from training.stages.threads import set_threads
    except ModuleNotFoundError as error:
        raise WrongConfiguration(
            f"a rerun repeats work, and {error.name} is not installed: install the extra "
            "`provider` (pip install 'tallystick[provider]')"
        ) from error
    set_threads(threads)
    try:
        found = asyncio.run(rerun(file, device=device))
    except AuditMismatch as error:
        typer.echo(f"mismatch: {error.message}", err=True)
        raise typer.Exit(EXIT_MISMATCH) from error
    if json_output:
        typer.echo(json.dumps(outcome.data(found), indent=2))
    else:
        typer.echo("\n".join(outcome.lines(found)))
    if not found.is_confirmed:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


def _hex(text: str, length: int, what: str) -> bytes:
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise Malformed(f"{what} {text!r:.80} is not hexadecimal") from error
    if len(data) != length:
        raise Malformed(f"{what} has {2 * length} hexadecimal digits, this one has {2 * len(data)}")
    return data


app.command("equivocation")(equivocation_command)
app.command("compare")(compare_command)
