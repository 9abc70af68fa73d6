"""Convictions, and the slashes that follow."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from contracts.terms.ids import (
    AddressField,
    DigestField,
    Hex,
    JobIdField,
    PeerIdField,
    SessionKeyField,
    StepField,
)
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import Body, Money, Page, SignatureField

SlashState = Literal[
    "convicted",
    "announcing",
    "announced",
    "contested",
    "dropping",
    "executed",
    "dropped",
    "nothing",
]


class SlashView(Body):
    """A conviction and its case on chain."""

    evidence: DigestField  # blob: the bundle that anyone can run again
    job: JobIdField
    account: AddressField
    state: SlashState
    wanted: Money
    amount: Money  # announced: of it the parts below, once executed what the chain took
    restitution: Money
    bounty: Money
    burned: Money
    challenger: AddressField
    convicted_at: UnixMillisField
    case: int | None
    window_ends: UnixSecondsField | None  # of an open case: until then it can be contested
    contest: DigestField | None  # blob: the bundle that speaks against it
    announced_by: DigestField | None  # transaction
    ended_by: DigestField | None  # transaction


class ConvictionView(Body):
    """What a job's seals made slashable; `slash` once an auditor has named the bundle."""

    columns: ClassVar[tuple[str, ...]] = (
        "account",
        "subject",
        "step",
        "wanted",
    )

    job: JobIdField
    subject: DigestField  # the message that was found wrong
    step: StepField  # of the seal that ruled so
    account: AddressField
    wanted: Money  # of its stake
    owed: Money  # what the job paid or owes for it: restitution at most
    auditors: tuple[PeerIdField, ...]  # whose session keys may name the bundle
    slash: SlashView | None


class ConvictionsView(Page):
    """Convictions in the order of their seals, of one job or of one account."""

    rows: ClassVar[str] = "convictions"

    convictions: tuple[ConvictionView, ...]


class SlashesView(Page):
    """Slashes of a job, in the order of convictions."""

    rows: ClassVar[str] = "slashes"

    slashes: tuple[SlashView, ...]


class PostEvidence(Body):
    """An auditor of `subject` names the bundle; `signature` over `evidence_digest`."""

    subject: DigestField  # the message that was found wrong
    bundle: DigestField  # blob, uploaded before
    session_key: SessionKeyField
    signature: SignatureField


class ContestSlash(Body):
    """`signature` by the convicted account's wallet over `contest_digest`."""

    bundle: DigestField
    signature: Annotated[bytes, Len(65, 65), Hex()]


class JudgeContest(Body):
    """What the market's operator found when both bundles were run again."""

    upheld: bool  # the contest: then nothing is slashed
