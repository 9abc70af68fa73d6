"""The market for people: depth by device class, demand, and what clearing rounds decided."""

from typing import Annotated, ClassVar

from pydantic import Field

from contracts.terms.ids import AddressField, DigestField, JobIdField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Price, Wide
from market.bodies.jobs import Excluded

ROUNDS_PAGE = 200

SignedPrice = Annotated[str, Field(max_length=21, pattern=r"^-?[0-9]+$")]


class LevelView(Body):
    """All that can be bought up to a price."""

    price: Price
    offers: int  # at this price
    peers: int  # accounts up to it: an account sells one slot of a job
    flops_per_second: Wide  # of all offers up to it, as they claim


class ClearedView(Body):
    """The newest round that bought a machine of a class."""

    number: int
    job: JobIdField
    price: Price
    at: UnixMillisField


class ClassView(Body):
    """A device class; prices are asks of offers that could be matched now."""

    device_class: str
    offers: int  # that stand
    leased: int
    open: int  # that could be matched now
    quartiles: tuple[Price, ...]  # least, 1/4, 1/2, 3/4, greatest; none without an open offer
    levels: tuple[LevelView, ...]  # ascending; of many, the first, the last and some between
    cleared: ClearedView | None
    spread: SignedPrice | None  # least ask less the highest ceiling that waits; None: one lacks


class DemandView(Body):
    """A job that waits for leases, and why it has none yet."""

    job: JobIdField
    slots: int
    spares: int
    ceiling: Price
    since: UnixMillisField
    checked: bool
    not_matched: tuple[Excluded, ...]


class MarketView(Body):
    """Offers and demand now."""

    clock: UnixMillisField
    num_classes: int
    classes: tuple[ClassView, ...]  # those with most offers
    demand: tuple[DemandView, ...]  # jobs of the next round, the oldest first


class WinnerView(Body):
    """An offer that a round bought."""

    offer: DigestField
    account: AddressField
    ask: Price
    stage: int
    device_class: str


class ClearingRoundView(Body):
    """What a clearing round decided for a job: whom it bought, or why nobody."""

    columns: ClassVar[tuple[str, ...]] = (
        "number",
        "at",
        "job",
        "asks",
        "price",
    )

    number: int
    job: JobIdField
    at: UnixMillisField
    slots: int  # that were missing
    spares: int
    ceiling: Price
    asks: int  # that were feasible
    price: Price | None  # paid to all who were bought; None: nobody was
    winners: tuple[WinnerView, ...]
    not_matched: tuple[Excluded, ...]


class ClearingRoundsView(Body):
    """Rounds, ascending."""

    rounds: tuple[ClearingRoundView, ...]
