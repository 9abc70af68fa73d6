"""`tallystick audit`: export a job's audit file; verify one offline; run an audit again.

`verify` opens no socket and needs the base dependencies only. Its exit codes: 0 everything fits and
leads to the reader's own block hash and contract, 10 everything fits but the reader named none, 11
something does not fit, 12 the file cannot be read (damage, or another version): it says nothing.
`rerun` opens none either and needs torch: 0 this machine confirms what the auditor says, 10 it does
not, 11 no valid bundle, 12 as above.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from contracts.chain.layout import shipped
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import AuditMismatch, Malformed, WrongConfiguration
from contracts.terms.ids import JobId
from contracts.terms.typed_names import parse_address
from market.bodies.jobs import JobSummary
from market.bodies.routes import GET_JOBS, GET_NETWORK
from tallystick.audit import report, rerun_report
from tallystick.cli.anchor import anchor_command
from tallystick.cli.audit_bodies import (
    AuditableJob,
    AuditableJobs,
    Exported,
    Rerun,
    Verified,
    body_of,
)
from tallystick.cli.equivocation import compare_command, equivocation_command
from tallystick.cli.files import read, write
from tallystick.cli.options import Job, Market, ask, ask_of_job, parse_digest
from tallystick.cli.output import answer, short, shows, table
from tallystick.sdk.client import MarketClient
from verification.audit.audit_file import MAX_FILE_BYTES, AuditFile, verify
from verification.audit.snapshots import SHIPPED_AS

app = typer.Typer(
    no_args_is_help=True,
    help="Export a job's audit file; verify one offline; run an audit again.",
)

EXIT_UNANCHORED = 10
EXIT_NOT_CONFIRMED = 10
COMPLETE = ("finished", "closed", "refunded")


def _jobs_table(found: AuditableJobs) -> Table:
    columns = ("job", "name", "state", "#steps sealed", "#paid", "audit")
    return table(
        "",
        columns,
        (
            (
                short(each.job),
                each.name,
                each.state,
                f"{each.step}/{each.steps}",
                format_tokens(each.paid),
                "whole" if each.complete else "so far",
            )
            for each in found.jobs
        ),
    )


@app.command("list")
@shows(AuditableJobs, lines=lambda found: [_jobs_table(found)], rows="jobs")
def list_command(market: Market = None) -> AuditableJobs:
    """List the jobs that can be audited: those with a sealed step, newest first.

    A job that has not ended can be audited so far; `audit export` writes the file of one.

    Example: tallystick audit list
    """
    view = ask(market, lambda client: client.call(GET_JOBS))
    return AuditableJobs(jobs=tuple(_auditable(each) for each in view.jobs if each.step))


def _auditable(each: JobSummary) -> AuditableJob:
    return AuditableJob(
        job=each.job,
        name=each.name,
        state=each.state,
        step=each.step,
        steps=each.steps,
        paid=each.paid,
        complete=each.state in COMPLETE,
    )


@app.command("verify")
@shows(Verified, lines=lambda verified: [verified.verdict])
def verify_command(
    file: Annotated[Path, typer.Argument(help="Audit file.")],
    anchor: Annotated[
        str | None, typer.Option(help="Block hash that you got from a node you trust.")
    ] = None,
    settlement: Annotated[
        str | None, typer.Option(help="Address of Settlement, from a source you trust.")
    ] = None,
) -> None:
    """Check everything that was signed, anchored and paid in a job, offline.

    Exit codes: 0 anchored, 10 self-consistent but unanchored, 11 mismatch, 12 no readable file.

    Example: tallystick audit verify job.tally --anchor 0x... --settlement 0x...
    """
    if (anchor is None) != (settlement is None):
        raise Malformed("--anchor and --settlement belong together: give both, or neither")
    own_block = None if anchor is None else parse_digest(anchor, "block hash (--anchor)")
    own_contract = (
        None if settlement is None else parse_address(settlement, "contract (--settlement)")
    )
    ships = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}
    data = read(file, MAX_FILE_BYTES)
    verdict = verify(data, ships, anchor=own_block, settlement=own_contract)
    answer(body_of(Verified, report.data(verdict)), report.lines(verdict))
    if not verdict.anchored:
        raise typer.Exit(EXIT_UNANCHORED)


def _exported_lines(exported: Exported) -> list[str]:
    return [
        f"wrote {exported.file} ({exported.num_bytes} bytes), pinned to block "
        f"{exported.block_number} 0x{exported.block_hash.hex()}"
    ]


@app.command("export")
@shows(Exported, lines=_exported_lines)
def export_command(
    job: Job,
    to: Annotated[Path, typer.Option("--to", help="File to write.", metavar="FILE")],
    market: Market = None,
    rpc: Annotated[
        str | None, typer.Option(help="URL of a node; else the one that the market names.")
    ] = None,
) -> Exported:
    """Write a job's audit file, pinned to the newest block that is proved.

    The last line names the pinned block; a reader takes its hash from a node of his own.

    Example: tallystick audit export JOB --to job.tally
    """
    from contracts.json_rpc import JsonRpc
    from tallystick.audit.export import SHIPS, export
    from tallystick.sdk.http import http_url

    async def run(client: MarketClient, wanted: JobId) -> AuditFile:
        named = (await client.call(GET_NETWORK)).rpc_url if rpc is None else rpc
        async with JsonRpc(http_url(named, "a node")) as node:
            return await export(client, node, wanted)

    try:
        file = ask_of_job(market, job, run)
        header, data = file.snapshots[-1].header, file.encoded()
        verdict = verify(data, SHIPS, anchor=header.hash, settlement=file.domain.settlement)
    except AuditMismatch as error:
        message = f"the market's records do not fit: {error.message}"
        raise AuditMismatch(message, **error.data) from error
    write(to, data)
    return Exported(
        file=str(to),
        num_bytes=len(data),
        job=verdict.job,
        block_number=header.number,
        block_hash=header.hash,
    )


@app.command("rerun")
@shows(Rerun, lines=lambda rerun: [rerun.verdict])
def rerun_command(
    file: Annotated[Path, typer.Argument(help="Evidence bundle.", metavar="BUNDLE")],
    threads: Annotated[int, typer.Option(help="CPU threads to compute on.", min=1, max=1024)] = 1,
    device: Annotated[str, typer.Option(help="Device to compute on, as torch names it.")] = "cpu",
) -> None:
    """Run an audit again from its evidence bundle, offline: is the auditor's verdict confirmed?

    Needs torch, and memory for two copies of the stage's weights.

    Exit codes: 0 confirmed here, 10 not confirmed here, 11 no valid bundle, 12 no readable file.

    Example: tallystick audit rerun 0f3a.bundle --threads 4
    """
    try:
        from training.stages.exact import set_threads
        from verification.auditing.rerun import rerun
    except ModuleNotFoundError as error:
        raise WrongConfiguration(
            f"a rerun repeats work, and {error.name} is not installed: install the extra "
            "`provider` (pip install 'tallystick[provider]')"
        ) from error
    set_threads(threads)
    found = asyncio.run(rerun(file, device=device))
    answer(body_of(Rerun, rerun_report.data(found)), rerun_report.lines(found))
    if not found.is_confirmed:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


app.command("anchor")(anchor_command)
app.command("equivocation")(equivocation_command)
app.command("compare")(compare_command)
