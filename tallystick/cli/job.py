"""`tallystick job`: what there is of jobs, and what came of one.

How one is posted, followed, changed and accounted for is in the modules that are registered below.
"""

from pathlib import Path
from typing import Annotated

import typer

from contracts.terms.errors import NotFound
from contracts.terms.ids import DigestField, JobId, JobIdField
from market.bodies.base import Body
from market.bodies.jobs import JobsView, JobView, StepReport
from market.bodies.offers import ChecksView
from market.bodies.routes import GET_CHECKS, GET_CONVICTIONS, GET_JOB, GET_JOBS, GET_SLASH
from market.bodies.slashes import ConvictionsView
from tallystick.cli.job_compare import compare_command
from tallystick.cli.job_money import (
    close_command,
    money_command,
    reclaim_command,
    topup_command,
)
from tallystick.cli.job_order import plan_command, sample_command, schema_command, submit_command
from tallystick.cli.job_trail import peers_command, spend_command, steps_command, trace_command
from tallystick.cli.job_views import checks_lines, conviction_lines, job_table
from tallystick.cli.job_watch import watch_command
from tallystick.cli.job_wishes import cancel_command, pause_command, resume_command
from tallystick.cli.options import Job, Market, ask, ask_of_job, parse_digest
from tallystick.cli.output import notice, shows
from tallystick.cli.shown import lines_of
from tallystick.sdk.client import MarketClient
from tallystick.sdk.parts import download

app = typer.Typer(
    no_args_is_help=True, help="Plan and post a training job, follow it, see what came of it."
)


# --------------------------------------------------------------------------------- what there is


app.command("sample")(sample_command)
app.command("schema")(schema_command)
app.command("plan")(plan_command)
app.command("submit")(submit_command)


@app.command("list")
@shows(JobsView, lines=lines_of)
def list_command(market: Market = None) -> JobsView:
    """List the newest jobs: state, progress, budget and what was paid.

    Example: tallystick job list -o csv
    """
    return ask(market, lambda client: client.call(GET_JOBS))


@app.command("show")
@shows(JobView, lines=lambda view: [job_table(view)])
def show_command(job: Job, market: Market = None) -> JobView:
    """Show a job: its state, progress, price and money.

    Example: tallystick job show JOB -o json
    """
    return ask_of_job(market, job, lambda client, wanted: client.call(GET_JOB, job=wanted))


app.command("watch")(watch_command)


class Logged(Body):
    """Step reports of a job, in the order of steps."""

    job: JobIdField
    reports: tuple[StepReport, ...]


@app.command("logs")
@shows(Logged, lines=lines_of, rows="reports")
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
    view = ask_of_job(market, job, lambda client, wanted: client.call(GET_JOB, job=wanted))
    return Logged(job=view.job, reports=view.reports[-(last or 0) :])


app.command("money")(money_command)
app.command("spend")(spend_command)
app.command("peers")(peers_command)
app.command("steps")(steps_command)
app.command("trace")(trace_command)
app.command("compare")(compare_command)


@app.command("checks")
@shows(ChecksView, lines=checks_lines, rows="peers")
def checks_command(
    job: Job,
    falsified: Annotated[
        int | None,
        typer.Option(help="State the odds of so many false peer-steps.", min=1, max=10_000_000),
    ] = None,
    market: Market = None,
) -> ChecksView:
    """Show what checking has shown of each provider: audits, rates, odds, stake.

    P(undetected) is stated three times: if nobody who may audit is a friend of the cheat; if the
    largest owner among them is; if everybody in its stage is.

    Example: tallystick job checks JOB --falsified 20
    """
    return ask_of_job(
        market, job, lambda client, wanted: client.call(GET_CHECKS, job=wanted, falsified=falsified)
    )


@app.command("slashes")
@shows(ConvictionsView, lines=conviction_lines)
def slashes_command(job: Job, market: Market = None) -> ConvictionsView:
    """Show who was convicted in a job: the evidence, and what becomes of the stake.

    Example: tallystick job slashes JOB
    """
    return ask_of_job(market, job, lambda client, wanted: client.whole(GET_CONVICTIONS, job=wanted))


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
    answer: Annotated[
        bool, typer.Option("--answer", help="What the convicted account shows against it instead.")
    ] = False,
) -> EvidenceSaved:
    """Get the bundle that shows why somebody was convicted, to run it again.

    Example: tallystick job evidence EVIDENCE --to found.bundle
    """

    async def run(client: MarketClient) -> EvidenceSaved:
        slash = await client.call(GET_SLASH, evidence=parse_digest(evidence, "evidence"))
        wanted = slash.answer if answer else slash.evidence
        if wanted is None:
            raise NotFound("the account has shown nothing against this slash")
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
    merged: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: the model with it in its weights.")
    ] = False,
    step: Annotated[
        int | None, typer.Option("--step", help="After this step; else the newest there is.", min=1)
    ] = None,
    market: Market = None,
) -> Downloaded:
    """Download the trained model as a folder that transformers opens; an adapter as one of peft.

    While the job runs, what its members have published so far (`publish_every` in its file).

    Example: tallystick job download JOB --to my-model
    """

    async def run(client: MarketClient, wanted: JobId) -> Downloaded:
        chosen = await download(client, wanted, to, merges=merged, step=step, say=notice)
        return Downloaded(folder=str(to), step=chosen.step)

    return ask_of_job(market, job, run)


app.command("pause")(pause_command)
app.command("resume")(resume_command)
app.command("cancel")(cancel_command)
app.command("topup")(topup_command)
app.command("close")(close_command)
app.command("reclaim")(reclaim_command)
