"""Epochs, proofs of pay, batches of seals and coins."""

from typing import ClassVar, Literal

from contracts.terms.ids import AddressField, DigestField, JobIdField, StepField
from contracts.terms.moments import UnixSecondsField
from market.bodies.base import COINS_PAGE, Body, Money, Page, Part

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
