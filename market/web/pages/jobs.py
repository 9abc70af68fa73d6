"""A job as its poster, members and auditors want to see it, while it runs and afterwards."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request, Response

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import JobId
from market.api.context import Api, ApiDep, JobPath, WorkDep
from market.api.routes.checks import checks_view
from market.api.routes.jobs import checkpoints_view
from market.api.routes.slashes import convictions_of_job
from market.api.schemas import API_PREFIX, JobView, LeaseView, StepReport
from market.api.views import job_row, job_view
from market.service.ports import UnitOfWork
from market.service.show_checks import checks_of_job
from market.web.rendering import EVENTS, page

router = APIRouter()

MAX_POINTS = 500
OVER = ("refunded", "failed")
"""States after which a page needs no refresh."""

_EVENTS_PATH = f"{API_PREFIX}/jobs/{{name}}/events"


@router.get("/jobs/{name}")
async def get_job_page(job: JobPath, api: ApiDep, work: WorkDep, request: Request) -> Response:
    """A job."""
    return page(
        "job.html",
        here="market",
        events=EVENTS,
        events_url=_events_url(request, job),
        piece=False,
        **(await _progress(job, api, work) | await _checking(job, api, work)),
    )


@router.get("/jobs/{name}/fragment/progress")
async def get_progress(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """State, money, leases and losses of a job's page."""
    return page("job_progress.html", piece=True, **await _progress(job, api, work))


@router.get("/jobs/{name}/fragment/checking")
async def get_checking(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """Checks, convictions and checkpoints of a job's page."""
    return page("job_checking.html", **await _checking(job, api, work))


def _events_url(request: Request, job: JobId) -> str | None:
    """Where the job's events come from; None where the API has none, so the page asks again."""
    has_events = _EVENTS_PATH in request.app.openapi()["paths"]
    return _EVENTS_PATH.format(name=job.hex()) if has_events else None


async def _progress(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        row = await job_row(job, work)
        view = await job_view(row, work)
    return {
        "now": api.market.clock(),
        "name": row.name,
        "job": view,
        "is_over": view.state in OVER,
        "poster": row.poster,
        "posted_at": row.posted_at,
        "budget": row.budget,
        "epoch_cap": row.epoch_cap,
        "deadline": row.deadline * 1000,
        "seconds_left": seconds_left(view),
        "money_parts": parts_of_budget(view),
        "stages": by_stage(view.leases),
        "reports": thinned(view.reports),
        "num_reports": len(view.reports),
    }


async def _checking(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        found = await checks_of_job(job, work, api.followed)
    chain, blobs = api.market.chain, api.market.blobs
    return {
        "now": api.market.clock(),
        "job_id": job.hex(),
        # as for the API: other requests are answered while odds are multiplied
        "checks": await asyncio.to_thread(checks_view, found),
        "convictions": (await convictions_of_job(job, work, chain)).convictions,
        "checkpoints": (await checkpoints_view(job, work, blobs)).checkpoints,
    }


@dataclass(frozen=True)
class Part:
    """A part of the money in escrow, and where it is."""

    name: str
    amount: BaseUnits
    meaning: str


def parts_of_budget(job: JobView) -> tuple[Part, ...]:
    """What became of all that was put into escrow; the parts sum up to it."""
    unearned = job.escrowed - job.earned - job.refunded
    return tuple(
        Part(name, BaseUnits(amount), meaning)
        for name, amount, meaning in (
            ("paid", job.paid, "claimed by providers"),
            ("settled", job.debited - job.paid, "in an epoch, to be claimed"),
            ("vested", job.vested - job.debited, "checked long enough, in the next epoch"),
            ("earned", job.earned - job.vested, "sealed, and may still be found wrong"),
            ("refunded", job.refunded, "back at the poster"),
            ("left", unearned, "not earned by anybody yet"),
        )
    )


def seconds_left(job: JobView) -> int | None:
    """Until the last step, at the pace of the newest reports; None where there is no pace."""
    newest = job.reports[-20:]
    if job.state != "running" or len(newest) < 2 or newest[-1].step == newest[0].step:
        return None
    pace = (newest[-1].at - newest[0].at) / (newest[-1].step - newest[0].step)
    return round((job.progress.steps - newest[-1].step) * pace / 1000)


def by_stage(leases: Sequence[LeaseView]) -> tuple[tuple[int, tuple[LeaseView, ...]], ...]:
    """Leases of each stage, those that are over last."""
    ordered = sorted(
        leases, key=lambda each: (each.stage, each.state in ("ended", "lapsed"), each.account)
    )
    return tuple((stage, tuple(found)) for stage, found in groupby(ordered, lambda x: x.stage))


def thinned(reports: Sequence[StepReport]) -> tuple[StepReport, ...]:
    """At most `MAX_POINTS` reports, evenly, with the first and the newest."""
    if len(reports) <= MAX_POINTS:
        return tuple(reports)
    last = len(reports) - 1
    return tuple(reports[i * last // (MAX_POINTS - 1)] for i in range(MAX_POINTS))
