"""Convictions, the slashes that follow, and what the convicted account answers."""

from typing import Annotated, Literal

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
    "convicted", "announcing", "announced", "burned", "dropped", "lapsed", "nothing"
]
"""`dropped`: the canceller (or slasher) took it back. `lapsed`: the time to burn it is over.
`nothing`: the account had no stake in the job."""


class SlashView(Body):
    """A slash of an account's stake in a job; (job, account, evidence) names it."""

    evidence: DigestField  # blob: the bundle that anyone can run again
    job: JobIdField
    account: AddressField
    state: SlashState
    wanted: Money
    amount: Money  # announced; once burned, what the contract took
    convicted_at: UnixMillisField
    burns_from: UnixSecondsField | None  # of an announced one, for `execute` seconds (NetworkView)
    answer: DigestField | None  # blob that the account shows against it; it stops nothing
    announced_by: DigestField | None  # transaction
    ended_by: DigestField | None  # transaction


class ConvictionView(Body):
    """What a job's seals made slashable; `slash` once an auditor has named the bundle."""

    columns = ("account", "subject", "step", "wanted")

    job: JobIdField
    subject: DigestField  # the message that was found wrong
    step: StepField  # of the seal that ruled so
    account: AddressField
    wanted: Money  # of its stake
    auditors: tuple[PeerIdField, ...]  # whose session keys may name the bundle
    slash: SlashView | None


class ConvictionsView(Page):
    """Convictions in the order of their seals, of one job or of one account."""

    rows = "convictions"

    convictions: tuple[ConvictionView, ...]


class SlashesView(Page):
    """Slashes of a job, in the order of convictions."""

    rows = "slashes"

    slashes: tuple[SlashView, ...]


class PostEvidence(Body):
    """An auditor of `subject` names the bundle; `signature` over `evidence_digest`."""

    subject: DigestField  # the message that was found wrong
    bundle: DigestField  # blob, uploaded before
    session_key: SessionKeyField
    signature: SignatureField


class AnswerSlash(Body):
    """The convicted account shows a blob; `signature` by its wallet over `answer_digest`."""

    answer: DigestField  # blob, uploaded before
    signature: Annotated[bytes, Len(65, 65), Hex()]
