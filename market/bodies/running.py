"""A job that runs, for people: what it has spent and how long it lasts, and its peers by stage."""

from typing import ClassVar, Literal

from contracts.terms.ids import AddressField, DigestField, JobIdField, PeerIdField, StageField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Money, Part, Price
from market.bodies.jobs import JobState
from market.bodies.offers import ReputationView

SPEND_PAGE = 500
PEERS_PAGE = 500

SeatStateName = Literal[
    "expected", "serving", "silent", "finished", "left", "suspended", "convicted"
]


class AuditSpendView(Body):
    """The audits' part of the budget."""

    budget: Money
    spent: Money
    reserved: Money  # for audits that may follow from what is sealed, at most


class PaceView(Body):
    """Of the newest steps, rounded down."""

    steps: int  # that it is taken of
    millis_a_step: int
    spent_a_step: Money
    spent_an_hour: Money


class OutlookView(Body):
    """What comes if the job goes on as it does."""

    steps_left: int
    ends_at: UnixMillisField
    spent_then: Money
    lasts: bool  # the budget covers it
    spent_up_at_step: int | None  # the first step that the budget does not cover
    spent_up_at: UnixMillisField | None
    an_epoch: Money  # earned in one
    is_above_cap: bool  # so epochs fall behind


class AccountSpendView(Body):
    """What a job spends on an account; the other amounts sum to `earned`."""

    columns: ClassVar[tuple[str, ...]] = (
        "account",
        "earned",
        "waiting",
        "vested",
        "debited",
        "claimed",
    )

    account: AddressField
    earned: Money
    waiting: Money
    frozen: Money
    forfeited: Money
    vested: Money  # in no epoch yet
    debited: Money  # in epochs, and not claimed
    claimed: Money


class StepSpendView(Body):
    """What a step cost, and what of all vested in it."""

    columns: ClassVar[tuple[str, ...]] = (
        "step",
        "seal",
        "earned",
        "vested",
        "stored_at",
    )

    step: int
    seal: DigestField
    earned: Money
    vested: Money
    stored_at: UnixMillisField


class SpendView(Part):
    """Where a job's money is and how long it lasts. escrowed = unearned + earned + refunded."""

    rows: ClassVar[str] = "steps"
    most: ClassVar[int] = SPEND_PAGE

    job: JobIdField
    state: JobState
    clock: UnixMillisField
    budget: Money
    escrowed: Money
    unearned: Money
    earned: Money  # by all, frozen and forfeited pay included
    vested: Money
    frozen: Money
    forfeited: Money
    debited: Money  # in epochs on chain
    claimed: Money  # of that, by the accounts that are shown
    refunded: Money
    epoch_cap: Money  # most that an epoch takes
    audits: AuditSpendView | None  # None: nobody checks
    step: int
    num_steps: int
    pace: PaceView | None  # None: too few seals
    outlook: OutlookView | None  # None: it does not run
    num_accounts: int
    accounts: tuple[AccountSpendView, ...]  # those that earned most
    steps: tuple[StepSpendView, ...]  # beyond `after`


class SeatView(Body):
    """A peer of a job, or a lease whose peer has not come yet."""

    columns: ClassVar[tuple[str, ...]] = (
        "stage",
        "peer",
        "account",
        "state",
        "share",
        "tokens_per_second",
        "earned",
    )

    lease: DigestField
    account: AddressField
    peer: PeerIdField | None
    stage: StageField
    state: SeatStateName
    device_class: str
    price: Price
    heard_at: UnixMillisField | None
    units: int  # in the newest step with work
    share: int  # of its stage's, 1e-6
    milli_units_per_second: int  # of the newest steps, 1e-3
    tokens_per_second: int  # that pass through it
    earned: Money  # waiting + vested + frozen + forfeited
    waiting: Money
    vested: Money
    frozen: Money
    forfeited: Money
    reputation: ReputationView


class PeersView(Part):
    """A job's seats by stage; `next` is where the next page begins, None after the last one."""

    rows: ClassVar[str] = "seats"
    most: ClassVar[int] = PEERS_PAGE

    job: JobIdField
    stages: int
    step: int  # the newest sealed one
    worked: int  # the newest with work
    num_seats: int
    seats: tuple[SeatView, ...]
    next: int | None
