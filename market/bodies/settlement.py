"""Epochs, proofs of pay, batches of seals and coins; convictions, and the slashes that follow."""

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
from market.bodies.base import COINS_PAGE, Body, Money, Page, Part, SignatureField

EpochState = Literal["planned", "proposed", "final", "rejected"]


class DebitView(Body):
    """What an epoch takes from a job, and the seal that says so."""

    job: JobIdField
    amount: Money
    step: int
    seal: DigestField


class JobPay(Body):
    """What a job paid an account in total."""

    job: JobIdField
    cumulative: Money


class EpochLeafView(Body):
    """A leaf of an epoch's tree."""

    columns: ClassVar[tuple[str, ...]] = (
        "account",
        "cumulative",
    )

    account: AddressField
    jobs_root: DigestField
    cumulative: Money
    jobs: tuple[JobPay, ...]


class EpochSummary(Body):
    """An epoch in a list."""

    columns: ClassVar[tuple[str, ...]] = (
        "epoch",
        "state",
        "sum",
        "window_ends",
        "transaction",
    )

    epoch: int
    state: EpochState
    root: DigestField
    sum: Money
    window_ends: UnixSecondsField | None
    transaction: DigestField | None


class EpochsView(Page):
    """Epochs, newest first."""

    rows: ClassVar[str] = "epochs"

    epochs: tuple[EpochSummary, ...]


class EpochView(EpochSummary):
    """An epoch with everything that its root is made of."""

    debits: tuple[DebitView, ...]
    leaves: tuple[EpochLeafView, ...]


class ProofStep(Body):
    """A sibling on the path from a leaf to the root."""

    hash: DigestField
    sum: Money
    left: bool  # the sibling is on the left


class ProofView(EpochLeafView):
    """What `PayoutVault.claim` wants for `account`, under a final epoch's root."""

    epoch: int
    state: EpochState
    root: DigestField
    root_sum: Money
    index: int
    siblings: tuple[ProofStep, ...]


class BatchEntryView(Body):
    """One leaf of a batch."""

    job: JobIdField
    step: int
    seal: DigestField


class BatchView(Body):
    """A batch of seals; `coin` once it is recorded with enough confirmations."""

    root: DigestField
    entries: tuple[BatchEntryView, ...]
    transaction: DigestField | None
    block: int | None
    coin: DigestField | None


class AnchoredStepView(Body):
    """A step whose seal is anchored; `coin` once it is recorded with enough confirmations.

    A coin of zeros came too late: then everything of the step is drawn.
    """

    step: StepField
    root: DigestField  # of the first batch that holds it
    block: int  # that anchored the batch
    coin: DigestField | None


class CoinsView(Part):
    """Anchored steps of a job, ascending."""

    rows: ClassVar[str] = "steps"
    most: ClassVar[int] = COINS_PAGE

    steps: tuple[AnchoredStepView, ...]


# ------------------------------------------------------------------------- convictions and slashes

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
