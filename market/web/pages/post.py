"""Posting a job from the browser: like one that is here, quoted first, signed by the own wallet."""

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from contracts.terms.amounts import BaseUnits, PricePerPflop, in_tokens, read_tokens
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.api.context import Api, ApiDep, WorkDep, job_of
from market.bodies.jobs import QuoteView
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.order_like import Wish, order_like
from market.service.ports import UnitOfWork
from market.service.post_job import quote_job
from market.service.rows import JobRow
from market.service.show_jobs import job_summaries
from market.web.rendering import page

router = APIRouter()

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
        wish = _wish(asked, now)
        spec = _draft(spec_of(row).message, wish, now)
    except Refused as error:
        return _form(row, asked, error.message, status=400)
    return page(
        "post_quote.html",
        here="post",
        asked=asked,
        like=row,
        now=now,
        wish=wish,
        quote=await _quote(spec, api, work),
        order=_order(row.job, wish),
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


def _wish(asked: dict[str, str], now: UnixMillis) -> Wish:
    """What a form asks for.

    Raises:
        Malformed: a field is not what its label says.
    """
    hours = _whole(asked["hours"], "hours", MAX_HOURS)
    return Wish(
        asked["name"],
        _whole(asked["steps"], "steps", 10**7),
        _tokens(asked["budget"], "budget"),
        PricePerPflop(_tokens(asked["ceiling"], "ceiling")),
        UnixSeconds(now // 1000 + 3600 * hours),
    )


def _whole(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise Malformed(f"{name}: a whole number from 1 to {most}", field=name)
    return int(text)


def _tokens(text: str, name: str) -> BaseUnits:
    try:
        return read_tokens(text.strip().replace(",", ""))
    except ValueError as error:
        raise Malformed(f"{name}: {error}", field=name) from error


def _draft(like: JobSpec, wish: Wish, now: UnixMillis) -> JobSpec:
    """For the quote, before there is a wallet or a coordinator: those of the job it is like."""
    return order_like(like, wish, poster=like.poster, coordinator=like.coordinator, nonce=now)


async def _quote(spec: JobSpec, api: Api, work: UnitOfWork) -> QuoteView:
    return await quote_job(
        spec.encoded(),
        now=api.market.clock(),
        epoch_seconds=await api.epoch_seconds(),
        work=work,
        blobs=api.market.blobs,
    )


def _wish_name(like: JobId, asked: dict[str, str]) -> str:
    """What names an order in the browser: what was asked for, and nothing that a moment decides."""
    return hashlib.sha256("\0".join([like.hex(), *asked.values()]).encode()).hexdigest()[:24]


def _order(like: JobId, wish: Wish) -> dict[str, Any]:
    """The body of `POST /v1/orders/typed-data`, but for the poster."""
    return {
        "like": like.hex(),
        "name": wish.name,
        "steps": wish.steps,
        "budget": str(wish.budget),
        "price_ceiling": str(wish.price_ceiling),
        "deadline": wish.deadline,
    }
