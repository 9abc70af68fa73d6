"""Jobs: posting, quotes, what is shown of one, step reports and checkpoints."""

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Len

from contracts.terms.ids import (
    MAX_STEPS,
    AddressField,
    DigestField,
    Hex,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
    StepField,
)
from contracts.terms.messages import Count
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import (
    MAX_REPORTS,
    Body,
    Failure,
    Money,
    Page,
    Price,
    SignatureField,
    SignedField,
    Wide,
)
from market.bodies.offers import LeaseView

JobState = Literal[
    "draft", "funded", "matched", "running", "finished", "closed", "refunded", "failed"
]
JobWanted = Literal["running", "paused", "cancelled"]
"""What its poster wants of a job."""
JobOutcome = Literal[
    "unfunded", "waiting", "starting", "training", "paused", "cancelling", "settling",
    "finished", "stopped", "refunded", "failed",
]  # fmt: skip
"""What became of a job, for people; `state` says where its escrow is."""
WishNumber = Annotated[int, Ge(0), Le(2**53)]


class Permit(Body):
    """EIP-2612 over the token, for JobEscrow and the budget of the job."""

    deadline: UnixSecondsField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class PostJob(Body):
    """A signed JobSpec and the permit that pays for it."""

    signed: SignedField
    permit: Permit


class JobPosted(Body):
    """The job's id, at once."""

    job: JobIdField
    state: JobState


class QuoteRequest(Body):
    """A JobSpec that nobody signed yet (`JobSpec.encoded()`)."""

    spec: SignedField


class Excluded(Body):
    """How many offers a constraint excludes, and what it would have to be to admit one."""

    constraint: str
    offers: int
    would_fit: str


class ChangeView(Body):
    """A field of the job file, or `wait_until` (Unix seconds), and what it becomes.

    Amounts are in base units, prices in base units a PFLOP, the deadline in Unix seconds.
    """

    key: Literal[
        "price_ceiling", "min_stake", "deadline", "wait_until", "stages", "peers_per_stage"
    ]
    was: Wide
    to: Wide


class AdviceView(Body):
    """The least change, or two, with which the whole job would be matched with the offers of now.

    `size` is the part of what was asked that they give up, in millionths, rounded up; `budget` is
    the least that covers the job then.
    """

    changes: tuple[ChangeView, ...]
    size: int
    budget: Money


class StageQuoteView(Body):
    """A stage: what it asks for, how many offers have the memory, how fast it would be now."""

    first_layer: int
    end_layer: int
    unit_flops: Wide
    memory_bytes: int
    offers_with_memory: int
    peers: int | None  # None: nothing matches now
    flops_per_second: Wide | None
    seconds: int | None


class QuoteView(Body):
    """A dry run."""

    fits: bool
    flops: Wide
    cost_at_ceiling: Money
    cost_at_asks: Money | None  # at the price that would clear now; None: nothing matches now
    price_at_asks: Price | None
    lowest_losing_ask: Price | None  # None: nobody loses, so that price is the ceiling
    seconds: int | None  # of the slowest stage, at the flops/s that the winning offers claim
    reasons: tuple[str, ...]
    missing: tuple[str, ...]  # what is to be brought before it is posted: coordinator, blobs
    not_matched: tuple[Excluded, ...]
    advice: AdviceView | None
    verification_budget: Money  # for audits, beside the cost of the work
    budget_needed: Money  # for both, at the ceiling
    epochs: int  # settlement periods until the deadline
    epoch_cap_needed: Money
    offers: int  # that stand
    owners: int  # that fit
    slots: int  # owners that the job wants
    spares: int | None  # that would come beside them
    reservable: Money | None  # stake that twice as many owners as slots, or all that fit, can give
    stages: tuple[StageQuoteView, ...]


class ProgressView(Body):
    """The newest step report."""

    step: int
    steps: int
    loss_millionths: int | None
    tokens_per_second: int | None


class JobSummary(Body):
    """A job in a list."""

    columns: ClassVar[tuple[str, ...]] = (
        "job",
        "name",
        "outcome",
        "step",
        "steps",
        "budget",
        "paid",
    )

    job: JobIdField
    name: str
    state: JobState
    outcome: JobOutcome
    poster: AddressField
    budget: Money
    paid: Money
    step: int
    steps: int


class JobsView(Page):
    """Jobs, newest first."""

    rows: ClassVar[str] = "jobs"

    jobs: tuple[JobSummary, ...]


class JobView(Body):
    """A job with all that its members and its poster ask for."""

    job: JobIdField
    state: JobState
    outcome: JobOutcome
    failure: str | None
    wanted: JobWanted = "running"
    spec: dict[str, Any]  # for people: JSON of the JobSpec
    signed: SignedField  # for programs: the signed JobSpec
    opening: SignedField | None  # the signed JobOpening
    coordinator: AddressField
    coordinator_address: str | None  # host:port
    leases: tuple[LeaseView, ...]
    progress: ProgressView
    reports: tuple["StepReport", ...]
    num_messages: int
    escrowed: Money
    earned: Money
    vested: Money
    debited: Money  # settled into epochs, from the chain
    paid: Money  # claimed
    refunded: Money
    reconciled: bool  # the ledger agrees with the chain's logs
    not_matched: tuple[Excluded, ...]
    advice: AdviceView | None  # what would match it, while it is not
    transactions: dict[str, DigestField]
    unpublished: tuple["UnpublishedView", ...]


class StepReport(Body):
    """What a coordinator says of a step, for people: not paid, not audited."""

    columns: ClassVar[tuple[str, ...]] = (
        "at",
        "step",
        "loss_millionths",
        "validation_millionths",
        "tokens_per_second",
    )

    step: Annotated[int, Ge(1), Le(MAX_STEPS)]
    loss_millionths: Annotated[int, Ge(-(2**53)), Le(2**53)]  # 1e-6 nats per token
    tokens_per_second: Count
    at: UnixMillisField
    validation_millionths: Annotated[int, Ge(0), Le(2**53)] | None = None  # mean loss, nats


class PostReports(Body):
    """`signature` by the coordinator's session key over `reports_digest`."""

    reports: Annotated[tuple[StepReport, ...], Len(1, MAX_REPORTS)]
    signature: SignatureField


class PostCheckpoint(Body):
    """A member says which index lists the weights of its stage after `step`.

    The blob is an index of parts (`contracts.terms.parts`), which make a safetensors file of fp32
    tensors; members of a stage make equal ones. A member that could not upload them says why in
    `failure`; its `blob` is zero if it could not even read them. `signature` by the member's
    session key over `checkpoint_digest`.
    """

    stage: StageField
    step: StepField
    blob: DigestField
    failure: Failure
    session_key: SessionKeyField
    signature: SignatureField


class CheckpointStored(Body):
    """The claim is stored; `wanted` while the index or any of its parts is not here."""

    wanted: bool


class CheckpointView(Body):
    """Weights of a stage as members claim them; `num_bytes` is null until all parts are here."""

    stage: StageField
    step: StepField
    blob: DigestField
    peers: tuple[PeerIdField, ...]
    num_bytes: int | None


class UnpublishedView(Body):
    """Why a member could not upload the weights of its stage, which are not here."""

    stage: StageField
    step: StepField
    peer: PeerIdField
    reason: Failure


class CheckpointsView(Body):
    """All claims of a job, by stage, the newest step first, then by the number of peers."""

    checkpoints: tuple[CheckpointView, ...]
    unpublished: tuple[UnpublishedView, ...]
