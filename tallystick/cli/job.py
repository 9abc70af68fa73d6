"""`tallystick job`: submit a training job, and look at it."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from contracts.keys.store import load_or_create_wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import DeadlineExceeded, Malformed, NotFound, Refused
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import MILLION
from contracts.terms.moments import UnixSeconds
from market.api import schemas
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.convictions import ENDED, split_of, state_of
from tallystick.sdk.download import download
from tallystick.sdk.folders import HomeSettings
from tallystick.sdk.job_file import load_job_file
from tallystick.sdk.submit import submit
from verification.odds import read_exact, short

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


@app.command("checks")
def checks_command(
    job: Annotated[str, typer.Argument(help="Job id (64 hexadecimal digits).")],
    falsified: Annotated[
        int | None,
        typer.Option(help="State the odds of so many false peer-steps.", min=1, max=10_000_000),
    ] = None,
    market: Market = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """Show what checking has shown of each provider: audits, rates, odds, stake.

    P(undetected) is stated three times: if nobody who may audit is a friend of the cheat; if the
    largest owner among them is; if everybody in its stage is.

    Example: tallystick job checks JOB --falsified 20
    """
    if output not in ("table", "json"):
        raise Malformed(f"-o {output}: choose table or json")

    async def run() -> schemas.ChecksView:
        url = HomeSettings().market if market is None else market
        async with MarketClient(url) as client:
            return await client.checks(parse_job_id(job), falsified=falsified)

    view = asyncio.run(run())
    if output == "json":
        typer.echo(view.model_dump_json())
    elif view.checking == "off":
        typer.echo("checking is off: nobody is drawn, and work is paid unchecked")
    elif not view.peers:
        typer.echo("nobody has joined yet")
    for each in view.peers if output == "table" else ():
        Console().print(checks_table(each))


@app.command("slashes")
def slashes_command(
    job: Annotated[str, typer.Argument(help="Job id (64 hexadecimal digits).")],
    market: Market = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
) -> None:
    """Show who was convicted in a job: the evidence, the slash of the stake, and its split.

    Example: tallystick job slashes JOB
    """
    if output not in ("table", "json"):
        raise Malformed(f"-o {output}: choose table or json")

    async def run() -> tuple[schemas.ConvictionView, ...]:
        url = HomeSettings().market if market is None else market
        async with MarketClient(url) as client:
            return await client.convictions(parse_job_id(job))

    found = asyncio.run(run())
    if output == "json":
        typer.echo(schemas.ConvictionsView(convictions=found).model_dump_json())
    elif not found:
        typer.echo("nobody was convicted so that stake may be slashed")
    for each in found if output == "table" else ():
        Console().print(conviction_table(each))


@app.command("evidence")
def evidence_command(
    evidence: Annotated[str, typer.Argument(help="As `job slashes` shows it (64 digits).")],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
    market: Market = None,
    contest: Annotated[
        bool, typer.Option("--contest", help="The bundle that speaks against the slash instead.")
    ] = False,
) -> None:
    """Get the bundle that shows why somebody was convicted, to run it again.

    Example: tallystick job evidence EVIDENCE -o found.bundle
    """

    async def run() -> None:
        url = HomeSettings().market if market is None else market
        async with MarketClient(url) as client:
            slash = await client.slash(parse_digest(evidence, "evidence"))
            wanted = slash.contest if contest else slash.evidence
            if wanted is None:
                raise NotFound("nobody has contested this slash")
            await client.save_blob(wanted, out)

    asyncio.run(run())
    typer.echo(f"{out}: run it again with `tallystick audit rerun {out}`")


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
    """A job id that a person typed; raises as `parse_digest`."""
    return JobId(parse_digest(text, "job id"))


def parse_digest(text: str, what: str) -> Digest:
    """A digest that a person typed.

    Raises:
        Malformed: not 64 hexadecimal digits.
    """
    digits = text.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError as error:
        raise Malformed(f"{text!r:.80} is no {what}: 64 hexadecimal digits") from error
    if len(raw) != 32:
        raise Malformed(f"{text!r:.80} is no {what}: it has {len(digits)} digits, not 64")
    return Digest(raw)


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
        "checking": _checking(view.spec),
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


def _checking(spec: dict[str, Any]) -> str:
    audit = spec.get("rules", {}).get("audit")
    if audit is None:
        return "off: work unchecked"
    return f"on: {audit['floor'] / MILLION:.1%} of the work or more is drawn"


def checks_table(each: schemas.PeerChecksView) -> Table:
    """What checking has shown of a peer, for a person."""
    where = "from outside, or left" if each.stage is None else f"in stage {each.stage}"
    table = Table(show_header=False, title=f"peer {each.peer.hex()[:16]} {where}")
    for name, value in checks_rows(each).items():
        table.add_row(name, value)
    return table


def checks_rows(each: schemas.PeerChecksView) -> dict[str, str]:
    """The rows of `checks_table`."""
    rows = {"account": f"0x{each.account.hex()}", "peer-steps": str(each.peer_steps)}
    if (rates := each.rates) is not None:
        shown = (rates.least, rates.mean, rates.greatest)
        rows["q: least, mean, greatest"] = ", ".join(f"{rate / MILLION:.2%}" for rate in shown)
    rows["audits made"] = f"{each.reports}, {each.missed} missed"
    rows["audits received"] = _received(each.received)
    for odds in each.odds:
        chances = (odds.strangers, odds.largest_owner, odds.whole_stage)
        rows[f"P(undetected), {odds.falsified} false"] = ", ".join(
            short(read_exact(chance)) for chance in chances
        )
    rows["stake"] = format_tokens(each.stake)
    if each.stake_hours is not None:
        rows["stake"] += f", {each.stake_hours / 1000:.3f} hours of its income here"
    honesty, liveness = each.reputation.honesty / 1e4, each.reputation.liveness / 1e6
    rows["reputation"] = f"honesty {honesty:.2%}, liveness {liveness:.2%}"
    convicted_at = each.convicted_at
    rows["convicted"] = "no" if convicted_at is None else f"in the seal of step {convicted_at}"
    return rows


def _received(received: schemas.ReceivedView) -> str:
    return (
        f"{received.drawn} drawn: {received.matched} matched, {received.mismatched} mismatched, "
        f"{received.unrepeated} unrepeated, {received.missing} missing, {received.open} open"
    )


def conviction_table(conviction: schemas.ConvictionView) -> Table:
    """A conviction for a person."""
    table = Table(show_header=False, title=f"convicted by the seal of step {conviction.step}")
    rows = {
        "account": f"0x{conviction.account.hex()}",
        "subject": conviction.subject.hex(),
        "state": state_of(conviction),
        "stake at risk": format_tokens(conviction.wanted),
    }
    if (slash := conviction.slash) is None:
        rows["who may show it"] = "\n".join(peer.hex() for peer in conviction.auditors)
    else:
        rows["evidence"] = slash.evidence.hex()
        if slash.amount and (slash.state == "executed" or slash.state not in ENDED):
            rows["stake"] = split_of(slash)
        for what, digest in (
            ("contest", slash.contest),
            ("announced in", slash.announced_by),
            ("ended in", slash.ended_by),
        ):
            if digest is not None:
                rows[what] = digest.hex() if what == "contest" else f"0x{digest.hex()}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table
