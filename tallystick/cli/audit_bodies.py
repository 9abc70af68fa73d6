"""What the verbs of `tallystick audit` answer with, for programs."""

from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from contracts.terms.ids import AddressField, DigestField, JobIdField, PeerIdField
from market.bodies.base import Body, Money, read_body
from market.bodies.jobs import JobState
from market.bodies.offers import OddsView

B = TypeVar("B", bound=Body)


def body_of(cls: type[B], data: dict[str, Any]) -> B:
    """The body that `data`, made for JSON, is."""
    return read_body(cls, TypeAdapter(Any).dump_json(data))


class AuditableJob(Body):
    """A job that can be exported; `complete` once nothing is added to it any more."""

    job: JobIdField
    name: str
    state: JobState
    step: int
    steps: int
    paid: Money
    complete: bool


class AuditableJobs(Body):
    """Jobs that can be audited, newest first."""

    jobs: tuple[AuditableJob, ...]


class PinnedBlock(Body):
    """The block that a file is about."""

    number: int
    hash: DigestField
    time: int  # Unix seconds


class Exported(Body):
    """An audit file that was written; a reader takes the block's hash from a node of his own."""

    file: str
    num_bytes: int
    job: JobIdField
    block_number: int
    block_hash: DigestField


class AccountPaid(Body):
    """What a job did for an account, and what it claimed from all jobs."""

    earned: Money
    vested: Money
    paid: Money
    claimed: Money


class EscrowMoved(Body):
    """A job's money."""

    deposited: Money
    paid: Money
    refunded: Money
    remaining: Money


class Verified(Body):
    """What an audit file proves; see `tallystick.audit.report`."""

    verdict: Literal["anchored", "unanchored"]
    work: str
    job: JobIdField
    chain_id: int
    block: PinnedBlock
    contracts: dict[str, AddressField]
    token: AddressField
    steps: int
    ended: bool
    num_units: int
    checked: dict[str, int]
    forfeited: Money
    odds: dict[str, tuple[OddsView, ...]]  # by peer
    accounts: dict[str, AccountPaid]  # by account
    escrow: EscrowMoved


class RerunDistance(Body):
    """One measure, 1e-9."""

    here: int
    allowed: int
    auditor: int


class Rerun(Body):
    """What came of running an audit again; see `tallystick.audit.rerun_report`."""

    confirmed: bool
    verdict: str
    said: str
    job: JobIdField
    kind: str
    claim: str
    step: int
    stage: int
    subject: DigestField
    signed_by: PeerIdField
    worked: PeerIdField
    auditor: PeerIdField
    device_class: str
    distances: dict[str, RerunDistance]
    on_trust: tuple[str, ...]


class Proven(Body):
    """Two values that one key signed under one name; `file` where they were written to."""

    proven: Literal[True] = True
    file: str
    kind: str
    job: JobIdField
    key: DigestField | None  # session key; none: a wallet signed
    account: AddressField | None
    bound: bool
