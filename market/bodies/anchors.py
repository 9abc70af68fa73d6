"""Batches of seals on chain, and the coins that follow from the blocks that record them."""

from contracts.terms.ids import DigestField, JobIdField, StepField
from market.bodies.base import COINS_PAGE, Body, Part


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

    rows = "steps"
    most = COINS_PAGE

    steps: tuple[AnchoredStepView, ...]
