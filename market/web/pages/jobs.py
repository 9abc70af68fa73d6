"""A job as its poster, members and auditors want to see it, while it runs and afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Response

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.api.context import Api, ApiDep, JobPath, WorkDep
from market.api.routes.running import peers_view, spend_view
from market.bodies.advice import in_words
from market.bodies.base import API_PREFIX
from market.bodies.events import NumberedJobEvent, read_job_event
from market.bodies.jobs import JobView, StepReport
from market.bodies.running import SeatView
from market.domain.jobs import JobState
from market.domain.outcomes import Outcome, sentence
from market.service.feeds import newest_events
from market.service.find_job import find_job
from market.service.ports import UnitOfWork
from market.service.rows import ReportRow
from market.service.show_checks import checks_of_job
from market.service.show_jobs import job_outcome, job_view, progress_view
from market.service.show_slashes import find_convictions
from market.service.store_checkpoints import claimed_checkpoints
from market.web.rendering import page
from market.web.telling import JOB_EVENTS, VERDICTS, Told, told_of_job

router = APIRouter()

MAX_POINTS = 500
MAX_TOLD = 50  # events
MAX_VERDICTS = 25
MAX_STEPS_SHOWN = 10
OVER = ("refunded", "failed")
"""States after which a page needs no refresh."""


@router.get("/jobs/{job}")
async def get_job_page(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """A job."""
    events = await _events(job, api, work)
    newest = events["told"][0].number if events["told"] else 0
    pieces = await _now(job, work) | await _progress(job, api, work)
    return page(
        "job.html",
        here="market",
        events=JOB_EVENTS,
        events_url=f"{API_PREFIX}/jobs/{job.hex()}/events?after={newest}",
        site=api.site,
        piece=False,
        **(pieces | events | await _checking(job, api, work)),
    )


@router.get("/jobs/{job}/fragment/now")
async def get_now(job: JobPath, work: WorkDep) -> Response:
    """State and step of a job's page: asked for most often, so it costs least."""
    return page("job_now.html", **await _now(job, work))


@router.get("/jobs/{job}/fragment/events")
async def get_events(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """The newest events of a job's page."""
    return page("events_list.html", **await _events(job, api, work))


@router.get("/jobs/{job}/fragment/progress")
async def get_progress(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """Money, losses and peers of a job's page."""
    return page("job_progress.html", piece=True, **await _progress(job, api, work))


@router.get("/jobs/{job}/fragment/checking")
async def get_checking(job: JobPath, api: ApiDep, work: WorkDep) -> Response:
    """Checks, verdicts, convictions and checkpoints of a job's page."""
    return page("job_checking.html", **await _checking(job, api, work))


async def _now(job: JobId, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        row = await find_job(job, work)
        newest = await work[ReportRow].where(job=job, order="-step", limit=1)
    return {
        "state": row.state,
        "outcome": job_outcome(row),
        "said": sentence(Outcome(job_outcome(row)), JobState(row.state)),
        "failure": row.failure,
        "is_over": row.state in OVER,
        "progress": progress_view(row, newest),
    }


async def _events(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        await find_job(job, work)
        told = await _told(job, work, limit=MAX_TOLD)
    return {"now": api.market.clock(), "told": told}


async def _progress(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        row = await find_job(job, work)
        view = await job_view(row, work, api.booked)
    peers = await peers_view(job, api, work)
    first = max(0, peers.step - MAX_STEPS_SHOWN)
    now, advice = api.market.clock(), view.advice
    seconds = UnixSeconds(now // 1000)
    return {
        "now": now,
        "name": row.name,
        "job": view,
        "remedy": advice and in_words(advice, now=seconds, budget=row.budget),
        "poster": row.poster,
        "posted_at": row.posted_at,
        "budget": row.budget,
        "epoch_cap": row.epoch_cap,
        "deadline": row.deadline * 1000,
        "money_parts": parts_of_budget(view),
        "reports": thinned(view.reports),
        "num_reports": len(view.reports),
        "peers": peers,
        "stages": by_stage(peers.seats),
        "spend": await spend_view(job, api, work, after=first),
    }


async def _told(
    job: JobId, work: UnitOfWork, *, limit: int, kinds: tuple[str, ...] = ()
) -> tuple[Told, ...]:
    rows = await newest_events(job, work, limit=limit, kinds=kinds)
    events = (NumberedJobEvent(row.sequence, read_job_event(row.data)) for row in rows)
    return told_of_job(events, job.hex())


async def _checking(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        verdicts = await _told(job, work, limit=MAX_VERDICTS, kinds=VERDICTS)
    chain, blobs = api.market.chain, api.market.blobs
    return {
        "now": api.market.clock(),
        "job_id": job.hex(),
        # Without volumes: the page shows the odds of all that each did.
        "checks": await checks_of_job(job, work, api.followed, ()),
        "verdicts": verdicts,
        "convictions": (await find_convictions(work, chain, job=job)).convictions,
        "weights": await claimed_checkpoints(job, work, blobs),
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


def by_stage(seats: Sequence[SeatView]) -> tuple[tuple[int, tuple[SeatView, ...]], ...]:
    """Peers of each stage, those that are gone last."""
    gone = ("left", "suspended", "convicted")
    ordered = sorted(seats, key=lambda each: (each.stage, each.state in gone, each.account))
    return tuple((stage, tuple(found)) for stage, found in groupby(ordered, lambda x: x.stage))


def thinned(reports: Sequence[StepReport]) -> tuple[StepReport, ...]:
    """At most `MAX_POINTS` reports, evenly, with the first and the newest."""
    if len(reports) <= MAX_POINTS:
        return tuple(reports)
    last = len(reports) - 1
    return tuple(reports[i * last // (MAX_POINTS - 1)] for i in range(MAX_POINTS))
