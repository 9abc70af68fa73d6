"""`tallystick job compare`: jobs side by side."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from contracts.terms.amounts import format_tokens
from contracts.terms.messages import MILLION
from market.bodies.jobs import JobView
from market.bodies.routes import GET_JOB
from tallystick.cli.options import Market, ask, named_job
from tallystick.cli.output import short, shows, table
from tallystick.sdk.client import MarketClient
from tallystick.sdk.compare import ComparedJob, Comparison, CurveRow, compare
from tallystick.sdk.curves import Point, points_of


def _lines(found: Comparison) -> Iterator[RenderableType]:
    heads = tuple(f"#{short(each.job)}" for each in found.jobs)
    cells = zip(*map(_cells, found.jobs), strict=True)
    names = ("name", "outcome", "strategy", "step", "tokens", "loss", "validation", "cost", "time")
    yield table("", ("", *heads), ((name, *row) for name, row in zip(names, cells, strict=True)))
    yield _curve("mean loss since the row before, up to a step", "#step", heads, found.by_step)
    yield _curve("the same, up to so many tokens", "#tokens", heads, found.by_tokens)
    if found.settings:
        rows = ((each.name, *each.values) for each in found.settings)
        yield table("what differs in their orders", ("", *heads), rows)


def _cells(job: ComparedJob) -> Iterator[str]:
    yield job.name
    yield job.outcome
    yield job.strategy
    yield str(job.step)
    yield str(job.tokens)
    yield _loss(job.loss_millionths)
    at = "" if job.validated_step is None else f" at {job.validated_step}"
    yield _loss(job.validation_millionths) + at
    yield f"{format_tokens(job.cost)} tokens"
    yield str(timedelta(seconds=job.seconds))


def _curve(title: str, place: str, heads: Sequence[str], rows: Sequence[CurveRow]) -> Table:
    cells = ((row.up_to, *map(_loss, row.losses_millionths)) for row in rows)
    return table(title, (place, *heads), cells)


def _loss(millionths: int | None) -> str:
    return "" if millionths is None else f"{millionths / MILLION:.4f}"


@shows(Comparison, lines=_lines, rows="jobs")
def compare_command(
    jobs: Annotated[list[str], typer.Argument(help="Two jobs or more.", metavar="JOB JOB...")],
    market: Market = None,
) -> Comparison:
    """Compare jobs: losses by step and by tokens, validation, cost, time, settings that differ.

    Example: tallystick job compare JOB JOB -o json
    """

    async def one(client: MarketClient, job: str) -> tuple[JobView, Sequence[Point]]:
        view = await client.call(GET_JOB, job=await named_job(client, job))
        return view, await points_of(client, view)

    async def run(client: MarketClient) -> Comparison:
        return compare(await asyncio.gather(*(one(client, job) for job in jobs)))

    return ask(market, run)
