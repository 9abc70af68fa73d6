"""Offers, who makes them, and the leases that they become."""

from typing import ClassVar, Literal

from contracts.terms.ids import AddressField, DigestField, JobIdField, SessionKeyField
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import Body, Money, Page, Price, SignatureField, SignedField

LeaseState = Literal["reserved", "accepted", "active", "silent", "ended", "lapsed"]


class OfferStored(Body):
    """The offer's digest, under which it is heard and withdrawn."""

    offer: DigestField
    withdrawn: bool  # before it was posted again; only a lease that it had then goes on
    takes_checked_jobs: bool
    """False: the calibration table does not hold its device class against two others."""


class OfferView(Body):
    """An offer as the market knows it."""

    columns: ClassVar[tuple[str, ...]] = (
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
    state: Literal["open", "leased", "withdrawn", "expired"]


class OffersView(Page):
    """Offers, cheapest first."""

    rows: ClassVar[str] = "offers"

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

    columns: ClassVar[tuple[str, ...]] = (
        "lease",
        "job",
        "state",
        "stage",
        "price",
        "stake",
    )

    lease: DigestField
    state: LeaseState
    offer: DigestField
    job: JobIdField
    account: AddressField
    stage: int
    price: Price  # what is paid, at least the ask
    stake: Money  # to be reserved in LeaseAccept
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
    """A provider binds itself: the signed LeaseAccept."""

    signed: SignedField
