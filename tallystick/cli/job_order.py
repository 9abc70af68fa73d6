"""From a wish to a posted job: `job sample`, `schema`, `plan` and `submit`."""

import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from rich.console import RenderableType

from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens, read_tokens
from contracts.terms.errors import Conflict, Unconfirmed
from contracts.terms.ids import AddressField, JobIdField
from contracts.terms.moments import UnixSeconds
from market.bodies.base import Body, Money
from market.bodies.routes import GET_ACCOUNT, GET_NETWORK
from tallystick.cli.job_money import close_and_reclaim
from tallystick.cli.job_plan import plan_lines
from tallystick.cli.job_watch import DAY, follow
from tallystick.cli.options import (
    DryRun,
    Market,
    PosterWallet,
    Timeout,
    ask,
    poster_wallet,
    typed,
)
from tallystick.cli.output import answer, facts, notice, shows
from tallystick.cli.wallet import account_in, is_terminal, open_or_create
from tallystick.files import write_whole
from tallystick.sdk.checking import CheckingPlan, checking_phrases
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import (
    JobFile,
    Strategy,
    job_schema,
    load_job_file,
    price,
    size,
    span,
)
from tallystick.sdk.job_schema import schema_text
from tallystick.sdk.plan import Plan, plan
from tallystick.sdk.sample import Wanted, sample
from tallystick.sdk.submit import Consent, check_clock, submit
from tallystick.sdk.submit import Submitted as Ordered

T = TypeVar("T")

_COUNT = re.compile(r"(\d{1,13})([kMB]?)")
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9}

EXIT_NO_MATCH, EXIT_COSTLY = 5, 9
"""Of `job plan`: as `submit` would be refused (`main.EXIT_CODES`)."""

JobPath = Annotated[Path, typer.Argument(help="Job file (YAML).")]
To = Annotated[Path | None, typer.Option("--to", help="File to write.", metavar="FILE")]


# ------------------------------------------------------------------------------------- job files


class Sampled(Body):
    """A starter job file; `file` is where it was written."""

    file: str | None
    text: str
    checking: CheckingPlan | None  # what it would cost at the price ceiling; None: not checked


def _sampled_lines(sampled: Sampled) -> Iterator[str]:
    if sampled.file is None:
        yield from sampled.text.splitlines()
    else:
        if sampled.checking is not None:
            yield f"checking: {'; '.join(checking_phrases(sampled.checking))}"
            yield from (
                f"cheaper checking, more work with {each}" for each in sampled.checking.cheaper
            )
        yield f"{sampled.file}: see what it costs with `tallystick job plan {sampled.file}`"


@shows(Sampled, lines=_sampled_lines)
def sample_command(
    parameters: Annotated[
        str, typer.Option("--parameters", help="Size of the model, as 200k, 25M or 1B.")
    ] = "1M",
    budget: Annotated[str, typer.Option("--budget", help="Tokens to spend at most.")] = "100",
    price_ceiling: Annotated[
        str, typer.Option("--price-ceiling", help="Tokens a PFLOP may cost at most.")
    ] = "2000",
    deadline: Annotated[str, typer.Option("--deadline", help="When it ends, as 2h or 1d.")] = "1h",
    peer_memory: Annotated[
        str | None, typer.Option("--peer-memory", help="Memory that a peer has, as 8GiB.")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Nobody does any of the work again.")
    ] = False,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How peers train together: every_step or local.")
    ] = "every_step",
    to: To = None,
) -> Sampled:
    """Write a job file for a model of a size and a budget, with a comment on every field.

    It trains for as many steps as the budget pays at the price ceiling. A file that is there
    already is never overwritten.

    Example: tallystick job sample --parameters 2M --budget 50 --to job.yaml
    """
    wanted = Wanted(
        parameters=typed("--parameters", parameters, _count),
        budget=typed("--budget", budget, read_tokens),
        price_ceiling=PricePerPflop(typed("--price-ceiling", price_ceiling, price)),
        deadline=typed("--deadline", deadline, span),
        peer_memory=None if peer_memory is None else typed("--peer-memory", peer_memory, size),
        checking=not unchecked,
        strategy=typed("--strategy", strategy, _strategy),
    )
    text, checking = sample(wanted)
    if to is not None:
        if to.exists():
            raise Conflict(f"{to} is there already, and a job file is never overwritten")
        write_whole(to, text.encode())
    return Sampled(file=None if to is None else str(to), text=text, checking=checking)


def _strategy(value: object) -> Strategy:
    known: tuple[Strategy, ...] = get_args(Strategy)
    for each in known:
        if each == value:
            return each
    raise ValueError(f"one of {', '.join(known)}")


def _count(value: object) -> int:
    match = _COUNT.fullmatch(str(value))
    if match is None:
        raise ValueError("a number, or one with k, M or B, as 25M")
    return int(match[1]) * _THOUSANDS[match[2]]


class JobSchema(Body):
    """The JSON Schema of job files; `file` is where it was written."""

    file: str | None
    document: dict[str, Any]


def _schema_lines(found: JobSchema) -> Iterator[str]:
    yield from schema_text().splitlines() if found.file is None else [found.file]


@shows(JobSchema, lines=_schema_lines)
def schema_command(to: To = None) -> JobSchema:
    """Print the JSON Schema of job files: editors complete and check them by it.

    A file of `job sample` names it in its first line already.

    Example: tallystick job schema --to job.schema.json
    """
    if to is not None:
        write_whole(to, schema_text().encode())
    return JobSchema(file=None if to is None else str(to), document=job_schema())


# ------------------------------------------------------------------------------------------ plan


@shows(Plan, lines=plan_lines, rows="stages")
def plan_command(
    file: JobPath,
    market: Market = None,
    why: Annotated[bool, typer.Option("--why", help="Say how each number is made.")] = False,
) -> None:
    """Say what a job would cost, how long it takes, and whether it would be matched now.

    The budget for checking is beside the cost of the work. If nothing matches, it says how many
    offers fail which constraint, and the cheapest remedy. Nothing is signed, sent or reserved.
    Exit codes: 0 it would be matched, 9 it would, with a warning that costs money, so that
    `submit` asks first, 5 it would not be matched.

    Example: tallystick job plan examples/tiny.yaml --why
    """
    job, data = load_job_file(file), data_folder(poster_wallet(None))
    found = ask(market, lambda client: plan(client, job, data=data, say=notice))
    answer(found, plan_lines(found, why=why))
    if found.costly or not found.fits:
        raise typer.Exit(EXIT_COSTLY if found.fits else EXIT_NO_MATCH)


# ---------------------------------------------------------------------------------------- submit


class Rehearsed(Body):
    """What would be signed and paid for a job, and whether it would be matched now."""

    poster: AddressField | None  # None: its wallet would be made
    held: Money
    plan: Plan


class Submitted(Body):
    """A job that was posted; or, of a dry run, what would have been."""

    job: JobIdField | None
    dry_run: Rehearsed | None


def _submitted_lines(submitted: Submitted) -> Iterator[RenderableType]:
    if submitted.job is not None:
        yield submitted.job.hex()
    if (dry := submitted.dry_run) is None:
        return
    account = "a wallet that would be made" if dry.poster is None else f"0x{dry.poster.hex()}"
    rows = {
        "would sign": f"JobSpec and permit for {format_tokens(dry.plan.cost.budget)} tokens",
        "by": f"{account}, which holds {format_tokens(dry.held)}",
    }
    yield facts("", rows)
    yield from plan_lines(dry.plan)


@shows(Submitted, lines=_submitted_lines)
def submit_command(
    file: JobPath,
    market: Market = None,
    wallet: PosterWallet = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")] = False,
    timeout: Timeout = DAY,
    yes: Annotated[
        bool, typer.Option("--yes", help="Agree to warnings that cost money, without being asked.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Order once more what was ordered by this file before.")
    ] = False,
    unmatched: Annotated[
        bool, typer.Option("--unmatched", help="Post it even if it fits no offer that there is.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Post a job: its id is printed at once, its budget goes into the escrow.

    The same file, wallet and market are one order: while its job is under way, also after Ctrl-C or
    a crash, the command finds it and pays nothing. When it is over, --again orders it once more.
    Warnings that cost money are asked about first; without a terminal that is exit code 9, or
    --yes. With --wait the exit code says how it ended, and a job that is over is closed and what is
    free of its budget taken back.

    Example: tallystick job submit examples/tiny.yaml --wait --yes
    """
    job, keystore = load_job_file(file), poster_wallet(wallet)
    if dry_run:
        answer(ask(market, lambda client: _rehearse(client, keystore, job)))
        return
    poster = open_or_create(keystore)
    agree = (lambda found: None) if yes else _agree
    consent = Consent(agree, again=again, unmatched=unmatched)

    async def run(client: MarketClient) -> None:
        posted = await submit(
            client,
            poster,
            job,
            orders=keystore.parent / "orders",
            data=data_folder(keystore),
            now=_now(),
            consent=consent,
            say=notice,
        )
        _tell_of_repetition(posted, wait=wait)
        answer(Submitted(job=posted.job, dry_run=None))
        if not wait:
            return
        try:
            await follow(client, posted.job, timedelta(seconds=timeout))
        finally:  # also of a job that failed
            await close_and_reclaim(client, poster, posted.job, keystore)

    ask(market, run)


def _agree(found: Plan) -> None:
    """Ask a person about what costs money.

    Raises:
        Unconfirmed: it was not agreed to, or there is nobody to ask.
    """
    if not found.costly:
        return
    for warning in found.costly:
        notice(f"warning: {warning}")
    if not is_terminal():
        raise Unconfirmed(
            "not posted, as it would cost money needlessly: "
            f"{'; '.join(found.costly)}. Change the job, or agree with --yes",
            warnings=list(found.costly),
        )
    # Not `typer.confirm`: that writes a blank to standard output, which is the id's alone.
    typer.echo("Post it all the same? [y/N] ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Unconfirmed("not posted: nothing was signed", warnings=list(found.costly))


def _tell_of_repetition(posted: Ordered, *, wait: bool) -> None:
    """Say what an order that was found again is; nothing was ordered.

    Raises:
        Conflict: its job is over, and nobody wants to know how it ended.
    """
    if posted.is_new:
        return
    if not posted.is_over:
        notice(f"ordered before by this file and {posted.state}: nothing is paid again")
        return
    said = f"this file was ordered before, as job {posted.job.hex()}, which is {posted.state}"
    if not wait:
        raise Conflict(f"{said}: nothing was ordered; --again orders it once more", job=posted.job)
    notice(f"{said}; --again would order it once more")


async def _rehearse(client: MarketClient, keystore: Path, job: JobFile) -> Submitted:
    check_clock((await client.call(GET_NETWORK)).clock, _now())
    poster = account_in(keystore) if keystore.exists() else None
    held = (
        BaseUnits(0) if poster is None else (await client.call(GET_ACCOUNT, account=poster)).token
    )
    found = await plan(client, job, data=data_folder(keystore), say=notice)
    dry = Rehearsed(poster=poster, held=held, plan=found)
    return Submitted(job=None, dry_run=dry)


def data_folder(keystore: Path) -> Path:
    """Where shards of the jobs of a wallet are kept."""
    return keystore.parent / "data"


def _now() -> UnixSeconds:
    return UnixSeconds(int(time.time()))
