"""`tallystick job`: submit a training job, follow it, get what came of it."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import NotFound, Refused
from contracts.terms.ids import AddressField, DigestField, JobId, JobIdField
from contracts.terms.moments import UnixSeconds
from market.api import schemas
from market.api.schemas import Body, Money
from tallystick.cli.job_views import (
    checks_lines,
    conviction_lines,
    job_table,
    jobs_table,
    progress_line,
    reports_table,
)
from tallystick.cli.keystore import new_wallet, open_or_create
from tallystick.cli.options import DryRun, Job, Market, Timeout, ask, ask_of_job, parse_digest
from tallystick.cli.output import answer, facts, notice, progress, shows
from tallystick.sdk.client import MarketClient
from tallystick.sdk.download import download
from tallystick.sdk.folders import HomeSettings
from tallystick.sdk.job_file import JobFile, load_job_file
from tallystick.sdk.rehearse import Rehearsal, rehearse
from tallystick.sdk.submit import submit
from tallystick.sdk.watching import watched

app = typer.Typer(no_args_is_help=True, help="Submit a training job, and follow it.")

WalletPath = Annotated[Path | None, typer.Option("--wallet", help="Keystore file of the poster.")]
DAY = 86_400


# ------------------------------------------------------------------------------------- posting


class Quoted(Body):
    """What would be signed and paid for a job, and whether it would be matched now."""

    poster: AddressField
    budget: Money
    deadline: int  # Unix seconds
    held: Money  # what the poster has
    upload_bytes: int
    quote: schemas.QuoteView


class Submitted(Body):
    """A job that was posted; or, of a dry run, what would have been."""

    job: JobIdField | None
    dry_run: Quoted | None


def _submitted_lines(submitted: Submitted) -> Iterator[RenderableType]:
    if submitted.job is not None:
        yield submitted.job.hex()
    if (dry := submitted.dry_run) is None:
        return
    quote = dry.quote
    seconds = "nothing matches now" if quote.seconds is None else f"{quote.seconds} s"
    asked = "" if quote.cost_at_asks is None else format_tokens(quote.cost_at_asks)
    rows = {
        "would sign": f"JobSpec and permit for {format_tokens(dry.budget)} tokens",
        "by": f"0x{dry.poster.hex()}, which holds {format_tokens(dry.held)}",
        "would send": f"{dry.upload_bytes} bytes of data",
        "cost at ceiling": format_tokens(quote.cost_at_ceiling),
        "cost at asks": asked or "nothing matches now",
        "takes": seconds,
        "fits": "yes" if quote.fits else "no",
    }
    rows |= {f"reason {number}": reason for number, reason in enumerate(quote.reasons, start=1)}
    yield facts("nothing was signed or posted", rows)


@app.command("submit")
@shows(Submitted, lines=_submitted_lines)
def submit_command(
    file: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    market: Market = None,
    wallet: WalletPath = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")] = False,
    timeout: Timeout = DAY,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Post it even if it fits no offer that there is.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Post a job: its id is printed at once, its budget goes into escrow.

    With --wait the exit code says how it ended; the answer is the same.

    Example: tallystick job submit examples/tiny.yaml --wait
    """
    settings = HomeSettings()
    job = load_job_file(file)
    keystore = wallet or settings.home / "poster.json"
    if dry_run:
        answer(_rehearsed(market, keystore, job))
        return
    poster = open_or_create(keystore)

    async def run(client: MarketClient) -> None:
        posted = await submit(
            client,
            poster,
            job,
            drafts=settings.home / "drafts",
            now=_now(),
            unmatched=unmatched,
            say=notice,
        )
        answer(Submitted(job=posted.job, dry_run=None))
        if wait:
            await follow(client, posted.job, timedelta(seconds=timeout))

    ask(market, run)


def _rehearsed(market: str | None, keystore: Path, job: JobFile) -> Submitted:
    poster: Wallet
    if keystore.exists():
        poster = open_or_create(keystore)
    else:
        notice(f"{keystore} would be made; here stands a wallet that is not kept")
        poster = new_wallet()
    found: Rehearsal = ask(market, lambda client: rehearse(client, poster.account, job, now=_now()))
    dry = Quoted(
        poster=poster.account,
        budget=found.spec.budget,
        deadline=found.spec.deadline,
        held=found.held,
        upload_bytes=found.num_bytes,
        quote=found.quote,
    )
    return Submitted(job=None, dry_run=dry)


def _now() -> UnixSeconds:
    return UnixSeconds(int(time.time()))


# ----------------------------------------------------------------------------------- following


@app.command("list")
@shows(schemas.JobsView, lines=lambda view: [jobs_table(view)], rows="jobs")
def list_command(market: Market = None) -> schemas.JobsView:
    """List the newest jobs: state, progress, budget and what was paid.

    Example: tallystick job list -o csv
    """
    return ask(market, lambda client: client.jobs())


@app.command("show")
@shows(schemas.JobView, lines=lambda view: [job_table(view)])
def show_command(job: Job, market: Market = None) -> schemas.JobView:
    """Show a job: its state, progress, price and money.

    Example: tallystick job show JOB -o json
    """
    return ask_of_job(market, job, lambda client, wanted: client.job(wanted))


@app.command("watch")
@shows(schemas.JobView, lines=lambda view: [progress_line(view)])
def watch_command(job: Job, market: Market = None, timeout: Timeout = DAY) -> schemas.JobView:
    """Follow a job until it ends: step, loss, tokens/s, peers, spend against the cap.

    Exit codes: 0 it ended, 2 it failed, 7 it goes on after --timeout.

    Example: tallystick job watch JOB --timeout 600
    """
    span = timedelta(seconds=timeout)
    return ask_of_job(market, job, lambda client, wanted: follow(client, wanted, span))


async def follow(client: MarketClient, job: JobId, timeout: timedelta) -> schemas.JobView:
    """Say how far a job is until it ends.

    Raises:
        DeadlineExceeded: it did not end within `timeout`.
        Refused: it failed.
    """
    with progress() as say:
        async for view in watched(client, job, timeout=timeout):
            say(progress_line(view))
    if view.state == "failed":
        raise Refused(f"the job failed: {view.failure}", job=job)
    return view


class Logged(Body):
    """Step reports of a job, in the order of steps."""

    job: JobIdField
    reports: tuple[schemas.StepReport, ...]


@app.command("logs")
@shows(Logged, lines=lambda logged: [reports_table(logged.reports)], rows="reports")
def logs_command(
    job: Job,
    market: Market = None,
    last: Annotated[
        int | None, typer.Option("--last", help="Only so many steps.", min=1, max=10_000_000)
    ] = None,
) -> Logged:
    """Print what a job's coordinator reported of each step: loss, validation, tokens/s.

    Example: tallystick job logs JOB --last 20 -o csv
    """
    view = ask_of_job(market, job, lambda client, wanted: client.job(wanted))
    return Logged(job=view.job, reports=view.reports[-(last or 0) :])


@app.command("checks")
@shows(schemas.ChecksView, lines=checks_lines, rows="peers")
def checks_command(
    job: Job,
    falsified: Annotated[
        int | None,
        typer.Option(help="State the odds of so many false peer-steps.", min=1, max=10_000_000),
    ] = None,
    market: Market = None,
) -> schemas.ChecksView:
    """Show what checking has shown of each provider: audits, rates, odds, stake.

    P(undetected) is stated three times: if nobody who may audit is a friend of the cheat; if the
    largest owner among them is; if everybody in its stage is.

    Example: tallystick job checks JOB --falsified 20
    """
    return ask_of_job(
        market, job, lambda client, wanted: client.checks(wanted, falsified=falsified)
    )


@app.command("slashes")
@shows(schemas.ConvictionsView, lines=conviction_lines, rows="convictions")
def slashes_command(job: Job, market: Market = None) -> schemas.ConvictionsView:
    """Show who was convicted in a job: the evidence, the slash of the stake, and its split.

    Example: tallystick job slashes JOB
    """
    found = ask_of_job(market, job, lambda client, wanted: client.convictions(wanted))
    return schemas.ConvictionsView(convictions=found)


# ---------------------------------------------------------------------------- what came of it


class EvidenceSaved(Body):
    """A bundle that was written."""

    file: str
    bundle: DigestField


def _evidence_lines(saved: EvidenceSaved) -> list[str]:
    return [f"{saved.file}: run it again with `tallystick audit rerun {saved.file}`"]


@app.command("evidence")
@shows(EvidenceSaved, lines=_evidence_lines)
def evidence_command(
    evidence: Annotated[str, typer.Argument(help="As `job slashes` shows it (64 digits).")],
    to: Annotated[Path, typer.Option("--to", help="File to write.", metavar="FILE")],
    market: Market = None,
    contest: Annotated[
        bool, typer.Option("--contest", help="The bundle that speaks against the slash instead.")
    ] = False,
) -> EvidenceSaved:
    """Get the bundle that shows why somebody was convicted, to run it again.

    Example: tallystick job evidence EVIDENCE --to found.bundle
    """

    async def run(client: MarketClient) -> EvidenceSaved:
        slash = await client.slash(parse_digest(evidence, "evidence"))
        wanted = slash.contest if contest else slash.evidence
        if wanted is None:
            raise NotFound("nobody has contested this slash")
        await client.save_blob(wanted, to)
        return EvidenceSaved(file=str(to), bundle=wanted)

    return ask(market, run)


class TimelineSaved(Body):
    """A timeline that was written."""

    file: str


@app.command("timeline")
@shows(TimelineSaved, lines=lambda saved: [saved.file])
def timeline_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders or files with the logs of a job's processes.")
    ],
    to: Annotated[Path, typer.Option("--to", help="File to write.", metavar="FILE")] = Path(
        "trace.json"
    ),
    job: Annotated[
        str | None,
        typer.Option("--job", help="First digits of the job's id, if there are several."),
    ] = None,
) -> TimelineSaved:
    """Draw what a job's processes did as a timeline, which ui.perfetto.dev opens.

    Example: tallystick job timeline ~/.tallystick/logs --to trace.json
    """
    from tallystick.watch.timeline import read_lines, told_of, trace_of, write_trace

    write_trace(trace_of(told_of(read_lines(folders), job)), to)
    return TimelineSaved(file=str(to))


class Downloaded(Body):
    """A model that was written, and the step after which it is."""

    folder: str
    step: int


@app.command("download")
@shows(Downloaded, lines=lambda got: [f"{got.folder}: the model after step {got.step}"])
def download_command(
    job: Job,
    to: Annotated[Path, typer.Option("--to", help="A new folder for the model.", metavar="FOLDER")],
    market: Market = None,
) -> Downloaded:
    """Download the trained model as a folder that transformers opens.

    Example: tallystick job download JOB --to my-model
    """

    async def run(client: MarketClient, wanted: JobId) -> Downloaded:
        chosen = await download(client, wanted, to, say=notice)
        return Downloaded(folder=str(to), step=chosen.step)

    return ask_of_job(market, job, run)
