"""The market as a whole: offers, demand, prices and jobs; whether it is well; the search field.

The status page answers while the chain does not.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.responses import RedirectResponse

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_names import digits_of, parse_name
from market.api.context import Api, ApiDep, WorkDep
from market.api.routes.market import status_view
from market.bodies.base import API_PREFIX
from market.bodies.events import NumberedMarketEvent, read_market_event
from market.bodies.market import ClearingRoundView, NetworkView
from market.bodies.offers import OfferView
from market.service.feeds import MARKET, newest_events
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_jobs import job_outcome, job_summaries
from market.service.show_market import rounds_view, shown_market
from market.service.show_offers import standing_offers
from market.web.health import checks_of, worst
from market.web.rendering import page
from market.web.telling import MARKET_EVENTS, told_of_market

router = APIRouter()

MAX_COUNTED = 200  # as many as `GET /v1/jobs` lists
MAX_SHOWN = 25
MAX_ROUNDS = 100
MAX_CLASSES = 20  # those with most offers
MAX_LEVELS = 50  # of a class, the cheapest
MAX_OWNERS = 10  # of a price


@dataclass(frozen=True)
class Level:
    """Offers of a class at one price."""

    price: PricePerPflop
    offers: tuple[OfferView, ...]

    @property
    def flops_per_second(self) -> int:
        """Of all of them, as they claim."""
        return sum(each.flops_per_second for each in self.offers)

    @property
    def memory_bytes(self) -> int:
        """The least of them."""
        return min(each.memory_bytes for each in self.offers)

    @property
    def heard_at(self) -> UnixMillis | None:
        """When one of them was heard last."""
        return max((each.heard_at for each in self.offers if each.heard_at), default=None)


@dataclass(frozen=True)
class Depth:
    """The open offers of a class, cheapest first."""

    device_class: str
    levels: tuple[Level, ...]

    @property
    def num_offers(self) -> int:
        """At all prices."""
        return sum(len(level.offers) for level in self.levels)


@dataclass(frozen=True)
class ShownOffers:
    """The offers that stand at a moment, as the page needs them."""

    clock: UnixMillis
    num_offers: int
    num_leased: int
    depths: tuple[Depth, ...]


async def shown_offers(now: UnixMillis, work: UnitOfWork) -> ShownOffers:
    """Offers now."""
    offers = await standing_offers(now, work)
    num_leased = sum(each.state == "leased" for each in offers)
    largest = sorted(depths(offers), key=lambda each: -each.num_offers)[:MAX_CLASSES]
    by_name = sorted(largest, key=lambda each: each.device_class)
    return ShownOffers(now, len(offers), num_leased, tuple(by_name))


def depths(offers: Iterable[OfferView]) -> tuple[Depth, ...]:
    """Open offers by class and price."""
    found: dict[str, dict[PricePerPflop, list[OfferView]]] = {}
    for each in offers:
        if each.state == "open":
            found.setdefault(each.device_class, {}).setdefault(each.price, []).append(each)
    return tuple(
        Depth(name, tuple(Level(price, tuple(levels[price])) for price in sorted(levels)))
        for name, levels in sorted(found.items())
    )


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
    told = (NumberedMarketEvent(each.sequence, read_market_event(each.data)) for each in events)
    rounds = (await rounds_view(work, limit=MAX_ROUNDS)).rounds
    offers = await api.kept_market(shown_offers).newest()
    return {
        "now": now,
        "market": (await api.kept_market(shown_market).newest()).view,
        "rounds": rounds[::-1],
        "classes_of": classes_of,
        "told": told_of_market(told),
        "depths": offers.depths,
        "max_levels": MAX_LEVELS,
        "max_owners": MAX_OWNERS,
        "num_leased": offers.num_leased,
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
        return await api.network_view()
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
