"""Jobs: posting (also by a browser wallet), quotes, what is shown of one, and the hosts.

Beside that: step reports, checkpoints, and what a poster asks of its job while it lasts.
"""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from contracts.terms.auditors import AuditorList
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
from contracts.terms.messages import Count, Text
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import (
    MAX_REPORTS,
    Body,
    Endpoint,
    Failure,
    Money,
    Page,
    Price,
    SignatureField,
    SignedField,
    Wide,
)
from market.bodies.offers import LeaseView

JobState = Literal["draft", "funded", "matched", "running", "finished", "closed", "failed"]
JobWanted = Literal["running", "paused", "cancelled"]
"""What its poster wants of a job."""
JobOutcome = Literal[
    "unfunded", "waiting", "starting", "training", "paused", "cancelling", "settling",
    "finished", "stopped", "failed",
]  # fmt: skip
"""What became of a job, for people. `settling`: trained, and its last pay vests."""
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
    item_flops: Wide
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
    offers: int  # that stand
    owners: int  # that fit
    slots: int  # owners that the job wants
    spares: int | None  # that would come beside them
    reservable: Money | None  # stake that twice as many owners as slots, or all that fit, can bond
    stages: tuple[StageQuoteView, ...]


class ProgressView(Body):
    """The newest step report."""

    step: int  # the newest seal
    trained: int  # steps of the order whose work is sealed
    steps: int
    loss_millionths: int | None
    tokens_per_second: int | None


class JobSummary(Body):
    """A job in a list."""

    columns = ("job", "name", "outcome", "trained", "steps", "budget", "claimed")

    job: JobIdField
    name: str
    state: JobState
    outcome: JobOutcome
    poster: AddressField
    budget: Money
    claimed: Money
    step: int
    trained: int
    steps: int


class JobsView(Page):
    """Jobs, newest first."""

    rows = "jobs"

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
    funded: Money  # brought less what the poster took back, by confirmed events
    committed: Money  # sum of all limits
    free: Money  # the poster can take it back now
    earned: Money  # by the newest seal
    vested: Money
    claimed: Money
    not_matched: tuple[Excluded, ...]
    advice: AdviceView | None  # what would match it, while it is not
    transactions: dict[str, DigestField]
    unpublished: tuple["UnpublishedView", ...]


class StepReport(Body):
    """What a coordinator says of a step, for people: not paid, not audited."""

    columns = ("at", "step", "loss_millionths", "validation_millionths", "tokens_per_second")

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


# ------------------------------------------ what a poster asks of its job, and what became of that

JobAction = Literal["pause", "resume", "cancel"]
OperationState = Literal["pending", "done", "failed"]
OperationWait = Literal["host", "coordinator"]
"""What a pending operation waits for: a host that lets go of the job, or claims it; the job's
coordinator (a pause: the end of the step in work; a cancel: the last seal)."""
OperationError = Literal["superseded", "ended"]
"""Another wish came first; or the job ended first."""


class AskJob(Body):
    """By the poster's wallet, which signs the request; `at` grows from wish to wish."""

    at: UnixMillisField


class OperationResult(Body):
    """How the job stood when the operation was looked at."""

    job_state: JobState
    wanted: JobWanted


class OperationView(Body):
    """What was asked of a job, and how far it is."""

    operation: DigestField
    job: JobIdField
    action: JobAction
    asked_at: UnixMillisField
    state: OperationState
    waits_for: OperationWait | None  # while it is pending
    result: OperationResult | None  # once it is done
    error: OperationError | None  # once it has failed


# ---------------------------------------------------------------- jobs that a browser wallet signs


class CloneJob(Body):
    """The same model, data and rules as the job `like`; the rest as said here."""

    like: JobIdField
    poster: AddressField
    name: Text
    steps: Annotated[int, Ge(1), Le(MAX_STEPS)]
    budget: Money
    price_ceiling: Price
    deadline: UnixSecondsField


class TypedJob(Body):
    """A JobSpec, and the two requests (`eth_signTypedData_v4`) that bind its poster's wallet."""

    job: JobIdField
    spec: SignedField  # `JobSpec.encoded()`, which nobody signed yet
    header: dict[str, Any]
    permit: dict[str, Any]
    permit_deadline: UnixSecondsField


class PostTypedJob(Body):
    """A JobSpec, its poster's signature, and the permit that pays for it."""

    spec: SignedField
    signature: Annotated[bytes, Len(65, 65), Hex()]
    permit: Permit


# ------------------------------------------------------------------------------------------- hosts

MAX_REASON = 500  # characters


class CoordinatorClaim(Body):
    """`signature` by the coordinator's wallet over `hosting_digest`."""

    address: AddressField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class RegisterHost(Body):
    """The coordinators whose keys a host holds."""

    coordinators: Annotated[tuple[CoordinatorClaim, ...], Len(1, 1000)]


class HostRegistered(Body):
    """How many coordinators of this host no job has been promised yet."""

    coordinators: int


class HostedJob(Body):
    """A job leased to a host until `until`."""

    job: JobIdField
    state: JobState
    spec: SignedField  # the signed JobSpec
    until: UnixMillisField
    wanted: JobWanted = "running"
    wish: WishNumber = 0  # of what is wanted: grows with every change
    opening_block: int | None = None  # that the opening of a checked job has to name
    auditors: Annotated[bytes, Len(1, AuditorList.max_bytes), Hex()] | None = None  # and the list


class HostedJobs(Body):
    """All jobs that the host holds."""

    jobs: tuple[HostedJob, ...]


class JobEndpoint(Body):
    """Where a job's coordinator listens."""

    job: JobIdField
    address: Endpoint


class HeededWish(Body):
    """A job is as its poster's wish of this number wants it."""

    job: JobIdField
    wish: WishNumber


class StandingJob(Body):
    """A job that stands still: somebody is missing, or its coordinator has ended."""

    job: JobIdField
    why: Annotated[str, Len(1, MAX_REASON)]


class HostHeartbeat(Body):
    """Renews the rows of `jobs`, whose coordinators run; `endpoints` of those that listen."""

    jobs: Annotated[tuple[JobIdField, ...], Len(0, 1000)]
    endpoints: Annotated[tuple[JobEndpoint, ...], Len(0, 1000)] = ()
    heeded: Annotated[tuple[HeededWish, ...], Len(0, 1000)] = ()
    standing: Annotated[tuple[StandingJob, ...], Len(0, 1000)] = ()
