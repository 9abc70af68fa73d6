"""Sealed steps, and one peer-step from its WorkClaim to the money, with every Merkle path.

How paths fold, leaf by leaf and in bytes (`contracts/terms/merkle.py`; `|` joins, keccak-256):
a message of a seal is keccak(7 | digest), its nodes keccak(6 | left | right); a seal of a batch is
keccak(5 | job | step as 8 bytes | seal), with the same nodes; a pay leaf is keccak(8 | account |
earned | vested), amounts in 10 bytes, with the same nodes. Siblings come from the bottom up.
"""

from typing import Annotated, Literal

from contracts.terms.ids import AddressField, DigestField, Hex, JobIdField, PeerIdField, StageField
from contracts.terms.moments import UnixMillisField
from contracts.terms.work import Verdict
from market.bodies.base import Body, Chance, Money, Part, Price, Wide
from market.bodies.earnings import (
    AnchorView,
    ClaimPartView,
    DrawnView,
    LineStateName,
    OutcomeName,
    PartsView,
)
from market.bodies.offers import OutcomesView

STEPS_PAGE = 200
STEP_LINES_PAGE = 500

RulingName = Literal[
    "drawn",
    "settled",
    "unrepeated",
    "missed",
    "accused",
    "contradicted",
    "convicted",
    "missing",
    "slashable",
    "unconfirmed",
]


class StepBeaconView(Body):
    """The beacon of a step, as a later seal says it."""

    said_in: int  # step of that seal
    batch: DigestField  # zeros: nobody shows what the batch holds, so all of the step is drawn
    block: int
    beacon: DigestField  # hash of that block; zeros: it came too late, all of the step is drawn


class DrawablesView(Body):
    """Messages of a step that its beacon may draw."""

    work: int
    sums: int
    reports: int


class StepView(Body):
    """A sealed step."""

    columns = ("step", "seal", "tokens", "peers", "drawn", "earned", "vested", "stored_at")

    step: int
    seal: DigestField
    previous: DigestField
    messages_root: DigestField
    pay_root: DigestField
    gradient_norm: Wide  # 1e-9; 0: no update
    next: int  # above every item that a seal covers
    unsealed: tuple[tuple[int, int], ...]  # (first, end) of items below it that none does
    updates: int  # of the model so far
    earned: Money  # by all, up to this step
    vested: Money
    last: bool
    stored_at: UnixMillisField
    round_closed: DigestField | None  # None: a step without work
    closed_at: UnixMillisField | None
    merged: int  # claims of work that the update is made of; 0: no update
    peers: int  # whose claims these are
    missed_by: tuple[AddressField, ...]  # whose peer was a member, and has no work in it
    tokens: Wide  # of text that the update is made of
    tokens_so_far: Wide
    items: int  # that the update is made of
    items_ahead: int  # of them, done while the round before was exchanged
    exchanged: Wide  # bytes that a peer sends to average the update, by the JobSpec
    anchor: AnchorView | None  # None: in no batch that is confirmed
    beacon: StepBeaconView | None  # None: not said yet, or nothing waits for it
    drawables: DrawablesView
    drawn: int
    outcomes: OutcomesView


class StepsView(Part):
    """Sealed steps of a job, ascending; ask again beyond the last one for those that follow."""

    rows = "steps"
    most = STEPS_PAGE

    job: JobIdField
    steps: tuple[StepView, ...]


class StepLineView(Body):
    """A peer-step, or an audit that is paid, in the step whose seal holds it."""

    kind: Literal["work", "audit"]
    subject: DigestField
    account: AddressField
    peer: PeerIdField
    stage: StageField
    work_step: int  # with `worker` and `seq` it names the trace
    worker: PeerIdField
    seq: int
    units: int
    flops: Wide
    price: Price
    amount: Money
    state: Literal["uncounted", "waiting", "frozen", "forfeited", "vested"]
    draw: DrawnView | None


class StepLinesView(Part):
    """A step with its lines; `next` is where the next page begins, None after the last line."""

    rows = "lines"
    most = STEP_LINES_PAGE

    job: JobIdField
    step: StepView
    num_lines: int
    lines: tuple[StepLineView, ...]
    next: int | None


class PlainStep(Body):
    """A sibling on a path of plain hashes."""

    hash: DigestField
    left: bool  # the sibling is on the left


class ClaimView(Body):
    """What the WorkClaim binds its peer to."""

    claim: DigestField
    previous: DigestField  # the seal before the round of the work
    base: DigestField  # root of the state that it started from
    leaves: DigestField  # root of what a replay compares
    units: int
    buckets: int  # outputs
    reports: tuple[DigestField, ...]  # of its own that it names


class SealedView(Body):
    """The message under its seal: `plain_leaf(claim)` leads to `messages_root`."""

    step: int
    seal: DigestField
    messages_root: DigestField
    leaf: DigestField
    index: int
    siblings: tuple[PlainStep, ...]


class AnchoredView(Body):
    """The seal in its batch: `leaf` leads to the batch's root, which is on chain."""

    anchor: AnchorView
    leaf: DigestField
    index: int
    siblings: tuple[PlainStep, ...]


class DrawView(Body):
    """Drawn iff prf / 2^256 < rate; BLAKE3 in the context `tallystick 1 draw` of beacon | name."""

    name: Annotated[bytes, Hex()]  # that the PRF is taken of
    rate: Chance  # q
    beacon: StepBeaconView | None
    step_beacon: DigestField | None  # B; None: not here, or too late and all is drawn
    ordering_beacon: DigestField | None  # what orders auditors and seeds projections
    prf: DigestField | None  # big-endian
    drawn: bool | None
    outcome: OutcomeName | None


class RoundView(Body):
    """Who was asked in one round of a subject's audits, in order."""

    round: int
    drawn_in: int  # step of the seal
    beacon: DigestField  # that ordered them
    auditors: tuple[PeerIdField, ...]


class DistanceView(Body):
    """A distance that an auditor measured, and the most that it may be in a match. 1e-9."""

    name: str
    distance: int
    allowed: int


class ReportView(Body):
    """A report that counts."""

    report: DigestField
    auditor: PeerIdField
    round: int
    attempt: int
    verdict: Verdict
    sealed: int  # step of the seal
    distances: tuple[DistanceView, ...]
    repeat: "AuditsView | None"  # its own audits from outside; None: it is never drawn


class RulingView(Body):
    """What a seal decided about the subject."""

    what: RulingName
    step: int  # of the seal
    peer: PeerIdField  # whom it is about
    by: tuple[PeerIdField, ...]


class AuditsView(Body):
    """A message's draw, who was asked, what they said, and what followed."""

    subject: DigestField
    draw: DrawView
    rounds: tuple[RoundView, ...]
    reports: tuple[ReportView, ...]
    rulings: tuple[RulingView, ...]
    outcome: OutcomeName | None


class PaySlipView(Body):
    """The account's leaf in the pay tree of the seal that vested the work."""

    step: int
    seal: DigestField
    pay_root: DigestField
    account: AddressField
    earned: Money
    vested: Money
    leaf: DigestField
    index: int
    siblings: tuple[PlainStep, ...]
    anchored: AnchoredView | None


class WorkTraceView(Body):
    """A peer-step from its WorkClaim to the money, as far as it has come."""

    job: JobIdField
    step: int  # in whose round it was done; `sealed` may be a later one
    peer: PeerIdField
    seq: int
    account: AddressField
    stage: StageField
    flops: Wide
    price: Price
    amount: Money
    state: LineStateName
    parts: PartsView
    work_claim: ClaimView
    sealed: SealedView
    anchored: AnchoredView | None
    audits: AuditsView | None  # None: nobody is drawn
    pay: PaySlipView | None  # None: not vested, or lost
    claims: tuple[ClaimPartView, ...]  # that paid it
