"""Live events: what people see of a job, and of the market, as it happens.

`kind` is the type of the server-sent event as well, and `at` the moment of what it tells, in
milliseconds: of a step report the coordinator's, of all others the market's. Amounts that grow
(`earned`, `vested`) are totals. What is wanted in full is in the view of the thing that an event
names.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

from annotated_types import Ge
from pydantic import Field, TypeAdapter, ValidationError

from contracts.terms.errors import Malformed
from contracts.terms.ids import (
    AddressField,
    DigestField,
    JobIdField,
    PeerIdField,
    StageField,
    StepField,
)
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from contracts.terms.work import Verdict
from market.bodies.base import Body, Money, Part, Price
from market.bodies.jobs import Excluded, JobState, StepReport, UnpublishedView
from market.bodies.offers import LeaseState
from market.bodies.slashes import SlashState
from market.bodies.tracing import RulingName

E = TypeVar("E")

REPORTS_PAGE = 1000
HEARTBEAT_SECONDS = 15
"""Pause after which a stream says that it is alive."""


class _Event(Body):
    """Something that happened at a moment."""

    at: UnixMillisField


class PostedEvent(_Event):
    """The job was posted; what its progress is measured against."""

    kind: Literal["posted"] = "posted"
    name: str
    poster: AddressField
    budget: Money
    price_ceiling: Price
    deadline: UnixSecondsField
    steps: int
    stages: int
    peers_per_stage: int
    audit_budget: Money | None  # part of the budget; None: nobody checks


class StateEvent(_Event):
    """The job is in another state."""

    kind: Literal["state"] = "state"
    state: JobState
    failure: str | None


class UnmatchedEvent(_Event):
    """A clearing round found no bundle for the job: what excludes how many offers."""

    kind: Literal["unmatched"] = "unmatched"
    not_matched: tuple[Excluded, ...]


class FundedEvent(_Event):
    """The poster's tokens went into the job's budget."""

    kind: Literal["funded"] = "funded"
    amount: Money
    transaction: DigestField


class LeaseEvent(_Event):
    """A lease of the job began, or is in another state."""

    kind: Literal["lease"] = "lease"
    lease: DigestField
    account: AddressField
    stage: int
    price: Price
    state: LeaseState


class PeerEvent(_Event):
    """The coordinator's Notice of a peer: it joined, left, was suspended, or owed something."""

    kind: Literal["peer"] = "peer"
    what: Literal["join", "leave", "missed_report", "missing_data", "suspension"]
    peer: PeerIdField
    account: AddressField | None  # None: of somebody outside the job
    stage: StageField
    step: StepField


class SealedEvent(_Event):
    """A step is sealed: what was done in it, and what the job owes since."""

    kind: Literal["sealed"] = "sealed"
    step: StepField
    seal: DigestField
    units: int  # of each stage
    peers: int  # whose work counts
    members: int
    loss_millionths: int | None  # mean over its units as committed; None: without update
    earned: Money
    vested: Money
    budget: Money
    last: bool


class ReportedEvent(StepReport):
    """What the coordinator says of a step; again when its validation loss is known."""

    kind: Literal["report"] = "report"


class AuditedEvent(_Event):
    """An auditor's report on a drawn piece of work arrived."""

    kind: Literal["audited"] = "audited"
    step: StepField  # of the subject
    stage: StageField
    auditor: PeerIdField
    subject: DigestField
    verdict: Verdict


class RuledEvent(_Event):
    """A seal decided about a drawn piece of work: see `verification.draws.cases.What`."""

    kind: Literal["ruled"] = "ruled"
    what: RulingName
    subject: DigestField
    step: StepField  # of the seal
    peer: PeerIdField  # whom it is about
    by: tuple[PeerIdField, ...]  # who was heard


class AnchoredEvent(_Event):
    """Seals of the job are on chain."""

    kind: Literal["anchored"] = "anchored"
    steps: tuple[StepField, ...]
    root: DigestField
    block: int
    transaction: DigestField


class BeaconEvent(_Event):
    """The beacon of anchored steps is known: it draws who is audited."""

    kind: Literal["beacon"] = "beacon"
    steps: tuple[StepField, ...]
    root: DigestField
    beacon: DigestField


class CheckpointEvent(_Event):
    """A member says which index lists its stage's weights; `is_here` once all parts are."""

    kind: Literal["checkpoint"] = "checkpoint"
    stage: StageField
    step: StepField
    blob: DigestField
    peer: PeerIdField
    is_here: bool


class UnpublishedEvent(_Event, UnpublishedView):
    """A member could not upload its stage's weights, and nobody has."""

    kind: Literal["unpublished"] = "unpublished"


class LimitEvent(_Event):
    """An account's limit is another: most that it can be paid in the job, in total."""

    kind: Literal["limit"] = "limit"
    account: AddressField
    limit: Money
    transaction: DigestField


class BondEvent(_Event):
    """An account put its stake behind its work in the job."""

    kind: Literal["bond"] = "bond"
    account: AddressField
    stake: Money
    transaction: DigestField


class QuitEvent(_Event):
    """An account's work in the job has ended, by itself, the coordinator, or a slash."""

    kind: Literal["quit"] = "quit"
    account: AddressField
    transaction: DigestField


class ClaimedEvent(_Event):
    """Vested pay went into an account's balance in the escrow."""

    kind: Literal["claimed"] = "claimed"
    account: AddressField
    amount: Money  # of this claim
    transaction: DigestField


class ReclaimedEvent(_Event):
    """The poster got back what was not committed."""

    kind: Literal["reclaimed"] = "reclaimed"
    amount: Money
    transaction: DigestField


class SlashEvent(_Event):
    """A slash for what was done in the job is in another state."""

    kind: Literal["slash"] = "slash"
    evidence: DigestField
    account: AddressField
    state: SlashState
    amount: Money


class EndEvent(_Event):
    """The job is over and all of its events were sent; `at` is that of the last one."""

    kind: Literal["end"] = "end"


JobEvent: TypeAlias = (
    PostedEvent
    | StateEvent
    | UnmatchedEvent
    | FundedEvent
    | LeaseEvent
    | PeerEvent
    | SealedEvent
    | ReportedEvent
    | AuditedEvent
    | RuledEvent
    | AnchoredEvent
    | BeaconEvent
    | CheckpointEvent
    | UnpublishedEvent
    | LimitEvent
    | BondEvent
    | QuitEvent
    | ClaimedEvent
    | ReclaimedEvent
    | SlashEvent
    | EndEvent
)


class JobChangedEvent(_Event):
    """A job was posted, or is in another state."""

    kind: Literal["job"] = "job"
    job: JobIdField
    name: str
    state: JobState


class RoundEvent(_Event):
    """A clearing round bound offers to a job, or found for the first time why it cannot."""

    kind: Literal["round"] = "round"
    job: JobIdField
    bought: Annotated[int, Ge(0)]  # leases
    price: Price | None  # None: nothing was bought
    offers: Annotated[int, Ge(0)]  # that stood


class OfferEvent(_Event):
    """A machine was offered, or taken back."""

    kind: Literal["offer"] = "offer"
    offer: DigestField
    account: AddressField
    device_class: str
    price: Price
    withdrawn: bool


MarketEvent: TypeAlias = JobChangedEvent | RoundEvent | OfferEvent


class ReportsView(Part):
    """Step reports, by step."""

    rows = "reports"
    most = REPORTS_PAGE

    reports: tuple[StepReport, ...]


_JOB: TypeAdapter[JobEvent] = TypeAdapter(Annotated[JobEvent, Field(discriminator="kind")])
_MARKET: TypeAdapter[MarketEvent] = TypeAdapter(Annotated[MarketEvent, Field(discriminator="kind")])


def read_job_event(data: bytes) -> JobEvent:
    """The event of a job in `data`.

    Raises:
        Malformed: it is none that this program knows.
    """
    return _read(_JOB, data)


def read_market_event(data: bytes) -> MarketEvent:
    """The event of the market in `data`; raises as `read_job_event`."""
    return _read(_MARKET, data)


def _read(adapter: TypeAdapter[E], data: bytes) -> E:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Malformed(f"no event: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
