"""`tallystick job`: submit a training job, and look at it."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from contracts.keys.store import load_or_create_wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import DeadlineExceeded, Malformed, Refused
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.api import schemas
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.download import download
from tallystick.sdk.folders import HomeSettings
from tallystick.sdk.job_file import load_job_file
from tallystick.sdk.submit import submit

app = typer.Typer(no_args_is_help=True, help="Submit a training job, and follow it.")

FINAL_STATES = ("finished", "closed", "refunded", "failed")
_POLL_SECONDS = 0.5

Market = Annotated[str | None, typer.Option("--market", help="URL of the market.")]
WalletPath = Annotated[Path | None, typer.Option("--wallet", help="Keystore file of the poster.")]


@app.command("submit")
def submit_command(
    file: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    market: Market = None,
    wallet: WalletPath = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")] = False,
    timeout: Annotated[
        int, typer.Option(help="Seconds that --wait waits at most.", min=1, max=31_536_000)
    ] = 86_400,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Post it even if it fits no offer that there is.")
    ] = False,
) -> None:
    """Post a job: its id is printed at once, its budget goes into escrow.

    Example: tallystick job submit examples/tiny.yaml --wait
    """
    settings = HomeSettings()
    job = load_job_file(file)
    console = Console(stderr=True)
    poster = load_or_create_wallet(wallet or settings.home / "poster.json")

    async def run() -> None:
        async with MarketClient(settings.market if market is None else market) as client:
            submitted = await submit(
                client,
                poster,
                job,
                drafts=settings.home / "drafts",
                now=UnixSeconds(int(time.time())),
                unmatched=unmatched,
                say=lambda line: console.print(line, highlight=False),
            )
            typer.echo(submitted.job.hex())
            if wait:
                await follow(client, submitted.job, console, timedelta(seconds=timeout))

    asyncio.run(run())


@app.command("show")
def show_command(
    job: Annotated[str, typer.Argument(help="Job id (64 hexadecimal digits).")],
    market: Market = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """Show a job: its state, progress, price and money."""
    if output not in ("table", "json"):
        raise Malformed(f"-o {output}: choose table or json")

    async def run() -> schemas.JobView:
        url = HomeSettings().market if market is None else market
        async with MarketClient(url) as client:
            return await client.job(parse_job_id(job))

    view = asyncio.run(run())
    if output == "json":
        typer.echo(view.model_dump_json())
    else:
        Console().print(job_table(view))


@app.command("timeline")
def timeline_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders or files with the logs of a job's processes.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write.")] = Path(
        "trace.json"
    ),
    job: Annotated[
        str | None,
        typer.Option("--job", help="First digits of the job's id, if there are several."),
    ] = None,
) -> None:
    """Draw what a job's processes did as a timeline, which ui.perfetto.dev opens.

    Example: tallystick job timeline ~/.tallystick/logs -o trace.json
    """
    from tallystick.watch.timeline import read_lines, told_of, trace_of, write_trace

    write_trace(trace_of(told_of(read_lines(folders), job)), output)
    typer.echo(str(output))


@app.command("download")
def download_command(
    job: Annotated[str, typer.Argument(help="Job id (64 hexadecimal digits).")],
    folder: Annotated[Path, typer.Option("-o", "--output", help="A new folder for the model.")],
    market: Market = None,
) -> None:
    """Download the trained model as a folder that transformers opens.

    Example: tallystick job download JOB -o my-model
    """
    console = Console(stderr=True)

    async def run() -> int:
        url = HomeSettings().market if market is None else market
        async with MarketClient(url) as client:
            chosen = await download(
                client,
                parse_job_id(job),
                folder,
                say=lambda line: console.print(line, highlight=False),
            )
            return chosen.step

    step = asyncio.run(run())
    typer.echo(f"{folder}: the model after step {step}")


def parse_job_id(text: str) -> JobId:
    """A job id that a person typed.

    Raises:
        Malformed: not 64 hexadecimal digits.
    """
    digits = text.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError as error:
        raise Malformed(f"{text!r:.80} is no job id: 64 hexadecimal digits") from error
    if len(raw) != 32:
        raise Malformed(f"{text!r:.80} is no job id: it has {len(digits)} digits, not 64")
    return JobId(raw)


async def follow(
    client: MarketClient, job: JobId, console: Console, timeout: timedelta
) -> schemas.JobView:
    """Print a line a step until the job ends.

    Raises:
        DeadlineExceeded: it did not end within `timeout`.
        Refused: it failed.
    """
    ends = time.monotonic() + timeout.total_seconds()
    seen: tuple[object, ...] = ()
    while time.monotonic() < ends:
        view = await retrying(lambda: client.job(job), patience=timedelta(minutes=2))
        now = (view.state, view.progress.step)
        if now != seen:
            console.print(progress_line(view), highlight=False)
            seen = now
        if view.state in FINAL_STATES:
            if view.state == "failed":
                raise Refused(f"the job failed: {view.failure}")
            return view
        await asyncio.sleep(_POLL_SECONDS)
    raise DeadlineExceeded(f"the job is {view.state} after {int(timeout.total_seconds())} s")


def progress_line(view: schemas.JobView) -> str:
    """State, step, loss and money of a job in one line."""
    progress = view.progress
    line = f"{view.state:9} step {progress.step}/{progress.steps}"
    if progress.loss_millionths is not None:
        line += f"  loss {progress.loss_millionths / 1e6:.4f}"
    if progress.tokens_per_second is not None:
        line += f"  {progress.tokens_per_second} tokens/s"
    return line + f"  earned {format_tokens(view.earned)} of {format_tokens(view.escrowed)}"


def job_table(view: schemas.JobView) -> Table:
    """A job for a person."""
    table = Table(show_header=False, title=str(view.spec.get("name", "")))
    rows = {
        "job": view.job.hex(),
        "state": view.state + (f": {view.failure}" if view.failure else ""),
        "step": f"{view.progress.step} of {view.progress.steps}",
        "escrowed": format_tokens(view.escrowed),
        "earned": format_tokens(view.earned),
        "vested": format_tokens(view.vested),
        "paid": format_tokens(view.paid),
        "refunded": format_tokens(view.refunded),
        "checking": "off: work unchecked",
    }
    for lease in view.leases:
        rows[f"lease {lease.lease.hex()[:8]}"] = (
            f"0x{lease.account.hex()} {lease.state} at {format_tokens(lease.price)} tokens/PFLOP"
        )
    for excluded in view.not_matched:
        rows[f"not matched: {excluded.constraint}"] = (
            f"{excluded.offers} offers; would fit: {excluded.would_fit}"
        )
    for name, value in rows.items():
        table.add_row(name, value)
    return table
