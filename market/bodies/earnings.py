"""What an account earned, line by line, and why a line waits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from contracts.terms.ids import AddressField, DigestField, JobIdField, PeerIdField, StageField
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import Body, Chance, Money, Part, Price, Wide

EARNINGS_PAGE = 200

LineCursor = Annotated[str, Field(max_length=96, pattern=r"^[0-9a-f]{64}:\d{1,16}$")]
"""Of a list that goes over several jobs: the job, and the number of a line in it."""

LineStateName = Literal[
    "uncounted", "waiting", "frozen", "forfeited", "vested", "debited", "final", "claimed"
]
OutcomeName = Literal["matched", "mismatched", "unrepeated", "missing", "open"]
WaitsForCode = Literal[
    "window",
    "draws",
    "audit",
    "report",
    "verdict",
    "close",
    "anchor",
    "cap",
    "epoch",
    "proposal",
    "challenge",
    "finalization",
    "claim",
    "convicted",
    "missing_data",
    "missed_report",
]


class PartsView(Body):
    """Where what was earned is, by state; all of it together is what was earned."""

    waiting: Money  # sealed, and not vested
    frozen: Money | None  # held by an open case; None: ask for one job
    forfeited: Money | None  # lost; None: ask for one job
    vested: Money  # in no epoch yet
    debited: Money  # in an epoch whose window is open
    final: Money  # may be claimed
    claimed: Money


class WaitsForView(Body):
    """Why a line waits, or was lost; `step` and `at`: until when, at the earliest, if known."""

    code: WaitsForCode
    sentence: str
    step: int | None  # whose seal
    at: UnixMillisField | None


class AnchorView(Body):
    """The batch on chain that holds a seal."""

    batch: DigestField  # its root
    block: int
    transaction: DigestField | None
    coin: DigestField | None  # None: not recorded yet; zeros: too late, all of it is drawn


class DrawnView(Body):
    """Whether a message was drawn to be audited, and what came of it."""

    rate: Chance  # q
    drawn: bool | None  # None: its coin is not here yet
    outcome: OutcomeName | None  # of what was drawn
    auditors: tuple[PeerIdField, ...]  # who has reported on it, the first one first


class PaidPartView(Body):
    """What of a line an epoch pays."""

    epoch: int
    amount: Money
    state: Literal["planned", "proposed", "final"]
    root: DigestField
    transaction: DigestField | None  # that proposed it
    window_ends: UnixSecondsField | None
    claimed_by: DigestField | None  # transaction


class EarningView(Body):
    """A peer-step, or an audit that is paid."""

    columns: ClassVar[tuple[str, ...]] = (
        "kind",
        "job",
        "step",
        "stage",
        "peer",
        "amount",
        "state",
    )

    cursor: LineCursor
    kind: Literal["work", "audit"]
    job: JobIdField
    peer: PeerIdField
    stage: StageField
    step: int  # of the work that was done, or audited
    round: int
    units: int
    flops: Wide  # that count; 0: nothing of it does
    price: Price
    subject: DigestField  # GradCommit, or AuditReport
    audited: DigestField | None  # what the report is about
    worker: PeerIdField  # who did the work; with `step` and `round` it names its trace
    sealed: int  # step of the seal that holds it
    seal: DigestField | None
    anchor: AnchorView | None
    draw: DrawnView | None  # None: it is never drawn
    amount: Money  # lines sum to what was earned; one that waits may change by a base unit
    state: LineStateName  # of that part which has farthest to go
    parts: PartsView
    paid: tuple[PaidPartView, ...]
    vested: int | None  # step of the seal that vested or took it
    waits_for: WaitsForView | None


class EarningsView(Part):
    """A page of an account's lines, in the order in which they were sealed, job by job.

    `parts` is of all lines, of one job if one was asked for. Lines are only ever added; `next` is
    where the next page begins, and None after the last line.
    """

    rows: ClassVar[str] = "lines"
    most: ClassVar[int] = EARNINGS_PAGE

    account: AddressField
    job: JobIdField | None
    clock: UnixMillisField
    parts: PartsView
    num_lines: int | None  # of the job that was asked for
    lines: tuple[EarningView, ...]
    next: LineCursor | None
