"""Offers, who makes them, their leases; outside auditors, and what checking has shown."""

from typing import Annotated, Literal

from annotated_types import Len

from contracts.terms.auditors import AuditorList
from contracts.terms.ids import (
    AddressField,
    DigestField,
    Hex,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StageField,
)
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import (
    Body,
    Chance,
    DeviceClass,
    Money,
    Page,
    Price,
    SignatureField,
    SignedField,
)

HEARTBEAT_MILLIS = 15_000  # an offer that was not heard for longer is not matched

LeaseState = Literal["reserved", "accepted", "active", "silent", "ended", "lapsed"]
"""`accepted`: its bond is not confirmed yet; `active`: it is, or none was asked for."""


class OfferStored(Body):
    """The offer's digest, under which it is heard and withdrawn."""

    offer: DigestField
    withdrawn: bool  # before it was posted again; only a lease that it had then goes on
    takes_checked_jobs: bool
    """False: the calibration table does not hold its device class against two others."""


class OfferView(Body):
    """An offer as the market knows it."""

    columns = (
        "offer",
        "account",
        "state",
        "price",
        "memory_bytes",
        "flops_per_second",
        "device_class",
    )

    offer: DigestField
    signed: SignedField
    account: AddressField
    price: Price
    device_class: str
    memory_bytes: int
    flops_per_second: int
    expires_at: UnixSecondsField
    heard_at: UnixMillisField | None
    state: Literal["open", "leased"]


class OffersView(Page):
    """Offers, cheapest first."""

    rows = "offers"

    offers: tuple[OfferView, ...]


class ReputationView(Body):
    """What audits and duties have shown of an account; it never changes how often it is audited.

    Honesty is a Beta posterior over its audited peer-steps and repeated reports, prior (1, 1).
    """

    honesty: int  # 1e-4: its 5 % quantile, rounded down; 500 for a stranger
    honesty_mean: int  # 1e-4, rounded down
    matches: int
    mismatches: int
    liveness: int  # 1e-6: moving average of the duties below, the newest weighs 1/16
    kept: int
    missed: int

    def in_words(self) -> str:
        """Honesty with the number of audits that it rests on."""
        audits = self.matches + self.mismatches
        if not audits:
            return "not audited yet"
        number = "1 audit" if audits == 1 else f"{audits:,} audits"
        return f"honesty {self.honesty / 100:.2f} % or more after {number}"


class ProviderView(Body):
    """An account as who chooses it should know it."""

    account: AddressField
    is_matched: bool  # False: worse than a stranger, so no job is matched with it
    reputation: ReputationView
    offers: tuple[OfferView, ...]  # that stand


class Heartbeat(Body):
    """`signature` by the session key over `heartbeat_digest`; `at` grows."""

    at: UnixMillisField
    signature: SignatureField


class Withdrawal(Body):
    """`signature` by the agent's session key over `withdrawal_digest`."""

    signature: SignatureField


class LeaseView(Body):
    """An offer bound to a job."""

    columns = ("lease", "job", "state", "stage", "price", "stake")

    lease: DigestField
    state: LeaseState
    offer: DigestField
    job: JobIdField
    account: AddressField
    stage: int
    price: Price  # what is paid, at least the ask
    stake: Money  # that the account has to bond in the job, all of its leases there together
    accept_ends: UnixMillisField
    spec: SignedField  # the signed JobSpec
    accept: SignedField | None  # the signed LeaseAccept
    session_key: SessionKeyField | None
    heard_at: UnixMillisField | None


class LeaseHeard(Body):
    """What became of a lease, for whoever just spoke for it."""

    lease: DigestField
    state: LeaseState
    heard_at: UnixMillisField


class LeasesView(Body):
    """Leases of an offer that are not over."""

    leases: tuple[LeaseView, ...]


class AcceptLease(Body):
    """A provider binds itself: the signed LeaseAccept, and the signed Bond behind it."""

    accept: SignedField
    bond: SignedField | None  # None: no stake is asked for, or the account's bond is high enough


# --------------------------------------------------- outside auditors, and what checking has shown

BondState = Literal["asked", "accepted", "bonded", "released", "refused"]
"""`accepted`: its Bond was handed in; `bonded`: that is confirmed; `released`: the job is over."""


class RegisterAuditor(Body):
    """An account offers to audit; `signature` by its wallet over `auditor_digest`."""

    account: AddressField
    session_key: SessionKeyField
    device_class: DeviceClass  # that replays are made on
    at: UnixMillisField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class AuditorRegistered(Body):
    """Heard from now on under `subject` of `auditor_subject`."""

    free: Money  # in the escrow, to bond in jobs


class BondAsked(Body):
    """A job lists an auditor once its Bond of `stake` is confirmed."""

    job: JobIdField
    price: Price
    stake: Money


class AuditorJobs(Body):
    """Jobs whose lists name the auditor's key and that are not over, and those that ask for it."""

    jobs: tuple[JobIdField, ...]
    asked: tuple[BondAsked, ...] = ()


class PostBond(Body):
    """An outside auditor backs its reports in a job: the signed Bond."""

    bond: SignedField


class BondView(Body):
    """What an outside auditor was asked to bond, and what became of it."""

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
    encoded: Annotated[bytes, Len(1, AuditorList.max_bytes), Hex()]
    auditors: tuple[AuditorView, ...]  # the same, for people


class OddsView(Body):
    """P(undetected) of `falsified` peer-steps of one peer, those that are hardest to find.

    A chance is an exact rational, numerator/denominator, each decimal or 0x; before any beacon was
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


class OutcomesView(Body):
    """What became of messages that were drawn."""

    matched: int
    mismatched: int
    unrepeated: int
    missing: int
    open: int


class ReceivedView(OutcomesView):
    """Audits of what a peer has signed: peer-steps, sums and reports, each once."""

    drawn: int


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
    stake: Money  # its part of the account's bond in the job
    stake_hours: int | None  # 1e-3 hours of its income here so far; None: it has none yet
    convicted_at: int | None  # step of the seal
    reputation: ReputationView


class ChecksView(Body):
    """What checking has shown of a job's peers, by its newest seal; none where nobody checks."""

    job: JobIdField
    checking: Literal["off", "on"]
    step: int
    peers: tuple[PeerChecksView, ...]  # by peer
