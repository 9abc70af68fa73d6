"""A job in the browser: its page while it runs and afterwards, and posting one like it.

A posted job is quoted first and signed by the poster's own wallet.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from contracts.terms.amounts import BaseUnits, in_tokens, read_tokens
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import JobId, StepNumber
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.api.context import Api, ApiDep, JobPath, WorkDep, job_of
from market.bodies.advice import in_words
from market.bodies.base import API_PREFIX, read_body
from market.bodies.earnings import SeatView
from market.bodies.events import read_job_event
from market.bodies.jobs import CloneJob
from market.bodies.money import JobMoney
from market.domain.jobs import SENTENCES
from market.domain.offers import thinned
from market.service.coding import spec_of
from market.service.feeds import newest_events
from market.service.find_job import find_job
from market.service.listing import Asked
from market.service.order_like import order_like
from market.service.ports import UnitOfWork
from market.service.post_job import quote_job
from market.service.rows import JobRow, ReportRow
from market.service.show_checks import checks_of_job
from market.service.show_jobs import job_outcome, job_summaries, job_view, progress_view
from market.service.show_money import money_of_job
from market.service.show_peers import peers_of
from market.service.show_slashes import find_convictions
from market.service.show_spend import spend_of
from market.service.show_steps import steps_of
from market.service.store_checkpoints import claimed_checkpoints
from market.web.rendering import page
from market.web.telling import JOB_EVENTS, VERDICTS, Told, told_of_job

router = APIRouter()

MAX_POINTS = 500
MAX_TOLD = 50  # events
MAX_VERDICTS = 25
MAX_STEPS_SHOWN = 10
MAX_ACCOUNTS = 50  # with their limits
OVER = ("closed", "failed")
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
        "said": SENTENCES[job_outcome(row)],
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
    now, times = api.market.clock(), await api.market.chain.times()
    async with work:
        row = await find_job(job, work)
        view = await job_view(row, work)
        found = await api.followed.load(job, row.num_messages, work)
        reports = thinned(view.reports, MAX_POINTS)
        sealed = {each.step: found.rounds.get(StepNumber(each.step)) for each in reports}
        first = max(0, row.step - MAX_STEPS_SHOWN)
        rounds = await steps_of(job, work, api.followed, after=first, limit=MAX_STEPS_SHOWN)
    money = await money_of_job(job, Asked(MAX_ACCOUNTS, None), times, now, work)
    peers = await peers_of(job, work, api.followed, now=now)
    advice = view.advice
    seconds = UnixSeconds(now // 1000)
    return {
        "now": now,
        "name": row.name,
        "job": view,
        "remedy": advice and in_words(advice, now=seconds, budget=row.budget),
        "poster": row.poster,
        "posted_at": row.posted_at,
        "budget": row.budget,
        "money": money,
        "tail": times.tail,
        "deadline": row.deadline * 1000,
        "money_parts": parts_of_budget(money),
        "reports": reports,
        "sealed": sealed,
        "num_reports": len(view.reports),
        "peers": peers,
        "stages": by_stage(peers.seats),
        "rounds": rounds.steps,
        "spend": await spend_of(job, work, api.followed, limit=0, now=now),
    }


async def _told(
    job: JobId, work: UnitOfWork, *, limit: int, kinds: tuple[str, ...] = ()
) -> tuple[Told, ...]:
    rows = await newest_events(job, work, limit=limit, kinds=kinds)
    events = ((row.sequence, read_job_event(row.data)) for row in rows)
    return told_of_job(events, job.hex())


async def _checking(job: JobId, api: Api, work: UnitOfWork) -> dict[str, Any]:
    async with work:
        verdicts = await _told(job, work, limit=MAX_VERDICTS, kinds=VERDICTS)
    return {
        "now": api.market.clock(),
        "job_id": job.hex(),
        # Without volumes: the page shows the odds of all that each did.
        "checks": await checks_of_job(job, work, api.followed, ()),
        "verdicts": verdicts,
        "convictions": (await find_convictions(work, job=job)).convictions,
        "weights": await claimed_checkpoints(job, work),
    }


@dataclass(frozen=True)
class Part:
    """A part of the money in escrow, and where it is."""

    name: str
    amount: BaseUnits
    meaning: str


def parts_of_budget(money: JobMoney) -> tuple[Part, ...]:
    """What became of all that is in escrow; the parts sum up to it.

    What has been earned above the limits is no part: no claim pays it.
    """
    claimed, committed = money.claimed, money.committed
    vested = min(max(claimed, money.vested), committed)
    earned = min(max(vested, money.earned), committed)
    return tuple(
        Part(name, BaseUnits(amount), meaning)
        for name, amount, meaning in (
            ("claimed", claimed, "paid to providers"),
            ("vested", vested - claimed, "checked long enough: may be claimed"),
            ("earned", earned - vested, "sealed, and not vested: waits, or is lost to its peer"),
            ("committed", committed - earned, "limits of accounts, for work to come"),
            ("free", money.free, "not committed: the poster may take it back"),
        )
    )


def by_stage(seats: Sequence[SeatView]) -> tuple[tuple[int, tuple[SeatView, ...]], ...]:
    """Peers of each stage, those that are gone last."""
    gone = ("left", "suspended", "convicted")
    ordered = sorted(seats, key=lambda each: (each.stage, each.state in gone, each.account))
    return tuple((stage, tuple(found)) for stage, found in groupby(ordered, lambda x: x.stage))


# ----------------------------------------------------------------------------------- posting a job

MAX_SHOWN = 25
DEFAULT_HOURS, MAX_HOURS = 24, 24 * 365

Text = Annotated[str, Query(max_length=256)]


@router.get("/post")
async def get_post_page(api: ApiDep, work: WorkDep, like: Text = "") -> Response:
    """Choose a job, or change one that was chosen."""
    async with work:
        if like:
            row = await find_job(job_of(like), work)
            return _form(row, _asked(spec_of(row).message))
        rows = await work[JobRow].where(order="-posted_at", limit=MAX_SHOWN)
        jobs = await job_summaries(rows, work)
    return page("post_choose.html", here="post", now=api.market.clock(), jobs=jobs)


@router.get("/post/quote")
async def get_quote_page(
    api: ApiDep,
    work: WorkDep,
    like: Text,
    name: Text = "",
    steps: Text = "",
    budget: Text = "",
    ceiling: Text = "",
    hours: Text = "",
) -> Response:
    """What the job would cost, and whether it would be matched now; then the wallet signs."""
    asked = {
        "name": name, "steps": steps, "budget": budget, "ceiling": ceiling, "hours": hours,
    }  # fmt: skip
    now = api.market.clock()
    async with work:
        row = await find_job(job_of(like), work)
    try:
        wish = _wish(row, asked, now)
        # There is no coordinator yet: that of the known job stands in.
        spec = order_like(spec_of(row).message, wish, coordinator=row.coordinator, salt=now)
    except Refused as error:
        return _form(row, asked, error.message, status=400)
    return page(
        "post_quote.html",
        here="post",
        asked=asked,
        like=row,
        now=now,
        wish=wish,
        quote=await quote_job(spec.encoded(), now=now, work=work, blobs=api.market.blobs),
        order=wish.model_dump(mode="json", exclude={"poster"}),
        wish_name=_wish_name(row.job, asked),
    )


def _asked(spec: JobSpec) -> dict[str, str]:
    """What the form says at first: as the job was ordered."""
    return {
        "name": spec.name,
        "steps": str(spec.batch.steps),
        "budget": in_tokens(spec.budget),
        "ceiling": in_tokens(spec.price_ceiling),
        "hours": str(DEFAULT_HOURS),
    }


def _form(row: JobRow, asked: dict[str, str], problem: str = "", *, status: int = 200) -> Response:
    return page("post_form.html", status, here="post", like=row, asked=asked, problem=problem)


def _wish(like: JobRow, asked: dict[str, str], now: UnixMillis) -> CloneJob:
    """What a form asks for; there is no wallet yet, so the poster of the known job stands in.

    Raises:
        Malformed: a field is not what its label says.
    """
    hours = _whole(asked["hours"], "hours", MAX_HOURS)
    said = {
        "like": like.job.hex(),
        "poster": like.poster.hex(),
        "name": asked["name"],
        "steps": _whole(asked["steps"], "steps", 10**7),
        "budget": str(_tokens(asked["budget"], "budget")),
        "price_ceiling": str(_tokens(asked["ceiling"], "ceiling")),
        "deadline": now // 1000 + 3600 * hours,
    }
    return read_body(CloneJob, json.dumps(said).encode())


def _whole(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise Malformed(f"{name}: a whole number from 1 to {most}", field=name)
    return int(text)


def _tokens(text: str, name: str) -> BaseUnits:
    try:
        return read_tokens(text.strip().replace(",", ""))
    except ValueError as error:
        raise Malformed(f"{name}: {error}", field=name) from error


def _wish_name(like: JobId, asked: dict[str, str]) -> str:
    """What names an order in the browser: what was asked for, and nothing that a moment decides."""
    return hashlib.sha256("\0".join([like.hex(), *asked.values()]).encode()).hexdigest()[:24]
