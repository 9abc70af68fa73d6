"""Outside auditors, and what checking has shown."""

from typing import Annotated, Literal

from annotated_types import Len

from contracts.terms.auditors import MAX_LIST_BYTES
from contracts.terms.ids import (
    AddressField,
    DigestField,
    Hex,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
)
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Chance, DeviceClass, Money, Price
from market.bodies.offers import ReputationView

BondState = Literal["asked", "accepted", "reserved", "released", "refused"]


class RegisterAuditor(Body):
    """A staked account offers to audit; `signature` by its wallet over `auditor_digest`."""

    account: AddressField
    session_key: SessionKeyField
    device_class: DeviceClass  # that replays are made on
    at: UnixMillisField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class AuditorRegistered(Body):
    """Heard from now on under `subject` of `auditor_subject`; drawn with this weight."""

    stake: Money


class BondAsked(Body):
    """A job lists an auditor that reserves `stake`, by a LeaseAccept of its key and no offer."""

    job: JobIdField
    price: Price
    stake: Money


class AuditorJobs(Body):
    """Jobs whose lists name the auditor's key and that are not over, and those that ask for it."""

    jobs: tuple[JobIdField, ...]
    asked: tuple[BondAsked, ...] = ()


class BondView(Body):
    """What an outside auditor was asked to reserve, and what became of it."""

    job: JobIdField
    account: AddressField
    stake: Money
    state: BondState


class AuditorView(Body):
    """An entry of a job's list of outside auditors."""

    account: AddressField
    stake: Money
    session_key: SessionKeyField
    device_class: str


class AuditorsView(Body):
    """The list that a job's opening names, as of `block`."""

    block: int
    digest: DigestField
    encoded: Annotated[bytes, Len(1, MAX_LIST_BYTES), Hex()]  # see `contracts.terms.auditors`
    auditors: tuple[AuditorView, ...]  # the same, for people


class OddsView(Body):
    """P(undetected) of `falsified` peer-steps of one peer, those that are hardest to find.

    A chance is an exact rational, numerator/denominator, each decimal or 0x; before any coin was
    known, from the rates with which the job really drew them.
    """

    falsified: int
    strangers: Chance  # nobody who may audit it is its friend
    largest_owner: Chance  # whoever has most of the weight among them is
    whole_stage: Chance  # everybody in the stage is: only repeats outside see anything


class RatesView(Body):
    """How often a peer's peer-steps were drawn: 1e-6, rounded up."""

    least: int
    mean: int
    greatest: int


class ReceivedView(Body):
    """Audits of what a peer has signed: peer-steps, sums and reports, each once."""

    drawn: int
    open: int
    matched: int
    mismatched: int
    unrepeated: int
    missing: int


class PeerChecksView(Body):
    """What checking has shown of a peer of a job, or of an outside auditor who has reported."""

    peer: PeerIdField
    account: AddressField
    stage: StageField | None  # None: it has left, or works outside
    peer_steps: int
    rates: RatesView | None  # None: it did no peer-step
    reports: int  # of its own that counted
    missed: int  # reports that came too late, or never
    received: ReceivedView
    odds: tuple[OddsView, ...]  # by volume, ascending; the last is of all its peer-steps
    stake: Money  # reserved for the job; of an outside auditor all that was active
    stake_hours: int | None  # 1e-3 hours of its income here so far; None: it has none yet
    convicted_at: int | None  # step of the seal
    reputation: ReputationView


class ChecksView(Body):
    """What checking has shown of a job's peers, by its newest seal; none where nobody checks."""

    job: JobIdField
    checking: Literal["off", "on"]
    step: int
    peers: tuple[PeerChecksView, ...]  # by peer
