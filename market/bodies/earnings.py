"""What an account earned, line by line, and why a line waits; what a job that runs has spent."""

from typing import Annotated, Literal

from pydantic import Field

from contracts.terms.ids import AddressField, DigestField, JobIdField, PeerIdField, StageField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Chance, Money, Part, Price, Wide
from market.bodies.jobs import JobState
from market.bodies.offers import ReputationView

EARNINGS_PAGE = 200

LineCursor = Annotated[str, Field(max_length=96, pattern=r"^[0-9a-f]{64}:\d{1,16}$")]
"""Of a list that goes over several jobs: the job, and the number of a line in it."""

LineStateName = Literal[
    "uncounted", "waiting", "frozen", "forfeited", "vested", "over_limit", "claimed"
]
OutcomeName = Literal["matched", "mismatched", "unrepeated", "missing", "open"]
WaitsForCode = Literal[
    "window",
    "draws",
    "audit",
    "report",
    "verdict",
    "seal",
    "claim",
    "grant",
    "ended",
    "convicted",
    "missing_data",
    "missed_report",
]


class PartsView(Body):
    """Where what was earned is, by state; all of it together is what was earned."""

    waiting: Money  # sealed, and not vested; of all jobs: with what is frozen or forfeited
    frozen: Money | None  # held by an open case; None: ask for one job
    forfeited: Money | None  # never vests; None: ask for one job
    vested: Money  # within the limit: may be claimed
    over_limit: Money  # vested above the limit: no claim pays it unless the limit is raised
    claimed: Money  # paid into the account's balance in the escrow


class WaitsForView(Body):
    """Why a line waits and what ends that, or why it was lost."""

    code: WaitsForCode
    sentence: str
    step: int | None  # whose seal ends it at the earliest, if known


class AnchorView(Body):
    """The batch on chain that holds a seal."""

    batch: DigestField  # its root
    block: int
    transaction: DigestField | None
    beacon: DigestField | None  # None: not recorded yet; zeros: too late, all of it is drawn


class DrawnView(Body):
    """Whether a message was drawn to be audited, and what came of it."""

    rate: Chance  # q
    drawn: bool | None  # None: its beacon is not here yet
    outcome: OutcomeName | None  # of what was drawn
    auditors: tuple[PeerIdField, ...]  # who has reported on it, the first one first


class ClaimPartView(Body):
    """What of a line a claim paid."""

    amount: Money
    block: int
    transaction: DigestField


class EarningView(Body):
    """A peer-step, or an audit that is paid."""

    columns = ("kind", "job", "step", "stage", "peer", "amount", "state")

    cursor: LineCursor
    kind: Literal["work", "audit"]
    job: JobIdField
    peer: PeerIdField
    stage: StageField
    step: int  # of the work that was done, or audited
    seq: int
    units: int
    flops: Wide  # that count; 0: nothing of it does
    price: Price
    subject: DigestField  # WorkClaim of the work, or of the report
    audited: DigestField | None  # what the report is about
    worker: PeerIdField  # who did the work; with `step` and `seq` it names its trace
    sealed: int  # step of the seal that holds it
    seal: DigestField | None
    anchor: AnchorView | None
    draw: DrawnView | None  # None: it is never drawn
    amount: Money  # lines sum to what was earned; one that waits may change by a base unit
    state: LineStateName  # of that part which has farthest to go
    parts: PartsView
    claims: tuple[ClaimPartView, ...]
    vested: int | None  # step of the seal that vested or took it
    waits_for: WaitsForView | None


class EarningsView(Part):
    """A page of an account's lines, in the order in which they were sealed, job by job.

    `parts` is of all lines, of one job if one was asked for. Lines are only ever added; `next` is
    where the next page begins, and None after the last line.
    """

    rows = "lines"
    most = EARNINGS_PAGE

    account: AddressField
    job: JobIdField | None
    clock: UnixMillisField
    parts: PartsView
    num_lines: int | None  # of the job that was asked for
    lines: tuple[EarningView, ...]
    next: LineCursor | None


# ------------------------------------------------------ a job that runs: spend, and peers by stage

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

    ends_at: UnixMillisField
    spent_then: Money
    lasts: bool  # the budget covers it
    spent_up_at_step: int | None  # the first step that the budget does not cover
    spent_up_at: UnixMillisField | None


class AccountSpendView(PartsView):
    """What a job spends on an account; the parts sum to `earned`."""

    columns = ("account", "earned", "waiting", "vested", "over_limit", "claimed")

    account: AddressField
    earned: Money
    frozen: Money
    forfeited: Money


class StepSpendView(Body):
    """What a step cost, and what of all vested in it."""

    columns = ("step", "seal", "earned", "vested", "stored_at")

    step: int
    seal: DigestField
    earned: Money
    vested: Money
    stored_at: UnixMillisField


class SpendView(Part):
    """Where a job's money is and how long it lasts; see `JobMoney` for the escrow's side."""

    rows = "steps"
    most = SPEND_PAGE

    job: JobIdField
    state: JobState
    clock: UnixMillisField
    budget: Money  # that was posted
    funded: Money  # in the escrow now, less what the poster took back; claims do not lower it
    committed: Money
    free: Money
    earned: Money  # by all, frozen and forfeited pay included
    vested: Money
    frozen: Money
    forfeited: Money
    claimed: Money
    audits: AuditSpendView | None  # None: nobody checks
    step: int
    trained: int  # steps of the order whose work is sealed
    num_steps: int
    pace: PaceView | None  # None: too few seals
    outlook: OutlookView | None  # None: it does not run
    num_accounts: int
    accounts: tuple[AccountSpendView, ...]  # those that earned most
    steps: tuple[StepSpendView, ...]  # beyond `after`


class SeatView(Body):
    """A peer of a job, or a lease whose peer has not come yet."""

    columns = ("stage", "peer", "account", "state", "share", "tokens_per_second", "earned")

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
    tokens_per_second: int  # that pass through it, in the newest steps
    earned: Money  # waiting + vested + frozen + forfeited
    waiting: Money
    vested: Money
    frozen: Money
    forfeited: Money
    reputation: ReputationView


class PeersView(Part):
    """A job's seats by stage; `next` is where the next page begins, None after the last one."""

    rows = "seats"
    most = PEERS_PAGE

    job: JobIdField
    stages: int
    step: int  # the newest sealed one
    worked: int  # the newest with work
    num_seats: int
    seats: tuple[SeatView, ...]
    next: int | None
