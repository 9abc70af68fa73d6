"""The market as a whole: offers, demand, prices and jobs; whether it is well; the search field.

The status page answers while the chain does not.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.responses import RedirectResponse

from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.typed_names import digits_of, parse_name
from market.api.context import Api, ApiDep, WorkDep
from market.api.routes.market import status_view
from market.bodies.base import API_PREFIX
from market.bodies.events import read_market_event
from market.bodies.market import ClearingRoundView, NetworkView
from market.service.feeds import MARKET, newest_events
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_jobs import job_outcome, job_summaries
from market.service.show_market import rounds_view
from market.web.health import checks_of, worst
from market.web.rendering import page
from market.web.telling import MARKET_EVENTS, told_of_market

router = APIRouter()

MAX_COUNTED = 200  # as many as `GET /v1/jobs` lists
MAX_SHOWN = 25
MAX_ROUNDS = 100


@router.get("/")
async def get_market(api: ApiDep, work: WorkDep) -> Response:
    """The market."""
    shown = await _shown(api, work)
    newest = shown["told"][0].number if shown["told"] else 0
    return page(
        "market.html",
        here="market",
        events=MARKET_EVENTS,
        events_url=f"{API_PREFIX}/market/events?after={newest}",
        piece=False,
        **shown,
    )


@router.get("/fragment/market")
async def get_market_fragment(api: ApiDep, work: WorkDep) -> Response:
    """What changes on the market's page."""
    return page("market_live.html", piece=True, **await _shown(api, work))


async def _shown(api: Api, work: UnitOfWork) -> dict[str, Any]:
    now = api.market.clock()
    async with work:
        rows = await work[JobRow].where(order="-posted_at", limit=MAX_COUNTED)
        jobs = await job_summaries(rows[:MAX_SHOWN], work)
        events = await newest_events(MARKET, work, limit=MAX_SHOWN)
    told = ((each.sequence, read_market_event(each.data)) for each in events)
    rounds = (await rounds_view(work, limit=MAX_ROUNDS)).rounds
    return {
        "now": now,
        "market": (await api.market_view.newest()).view,
        "rounds": rounds[::-1],
        "classes_of": classes_of,
        "told": told_of_market(told),
        "states": _by_outcome(rows),
        "num_counted": len(rows),
        "jobs": jobs,
    }


def classes_of(found: ClearingRoundView) -> str:
    """Which classes a round bought."""
    return ", ".join(sorted({each.device_class for each in found.winners}))


def _by_outcome(rows: Sequence[JobRow]) -> list[tuple[str, int]]:
    return sorted(Counter(job_outcome(row) for row in rows).items())


@router.get("/status")
async def get_status_page(api: ApiDep, work: WorkDep) -> Response:
    """How the market is, its chain, contracts and parameters."""
    network = await _network(api)
    status = await status_view(api, work)
    checks = checks_of(status, is_embedded=network is not None and network.embedded)
    return page(
        "status.html",
        here="status",
        now=status.clock,
        network=network,
        market=status,
        checks=checks,
        health=worst(checks),
    )


async def _network(api: Api) -> NetworkView | None:
    """The chain's side; None while no node answers."""
    try:
        return await api.network()
    except Unavailable:
        return None


_PAGE_BY_DIGITS = {64: "jobs", 40: "providers"}


@router.get("/find")
async def get_find(q: Annotated[str, Query(max_length=256)] = "") -> RedirectResponse:
    """The page of a job's id or of an account.

    Raises:
        NotFound: it is neither. Malformed: it is one with a slip.
    """
    num_digits = len(digits_of(q))
    kind = _PAGE_BY_DIGITS.get(num_digits)
    if kind is None:
        raise NotFound("neither a job's id (64 hex digits) nor an account (40 hex digits)")
    name = parse_name(q, "job or account", num_digits // 2)
    return RedirectResponse(f"/{kind}/{name.hex()}", 303)
