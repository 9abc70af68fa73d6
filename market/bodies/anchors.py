"""Batches of seals on chain, and the beacons that follow from the blocks that record them."""

from contracts.terms.ids import DigestField, JobIdField, StepField
from market.bodies.base import BEACONS_PAGE, Body, Part


class BatchEntryView(Body):
    """One leaf of a batch."""

    job: JobIdField
    step: int
    seal: DigestField


class BatchView(Body):
    """A batch of seals; `beacon` once it is recorded with enough confirmations."""

    root: DigestField
    entries: tuple[BatchEntryView, ...]
    transaction: DigestField | None
    block: int | None
    beacon: DigestField | None


class AnchoredStepView(Body):
    """A step whose seal is anchored; `beacon` once it is recorded with enough confirmations.

    A beacon of zeros came too late: then everything of the step is drawn.
    """

    step: StepField
    root: DigestField  # of the first batch that holds it
    block: int  # that anchored the batch
    beacon: DigestField | None


class BeaconsView(Part):
    """Anchored steps of a job, ascending."""

    rows = "steps"
    most = BEACONS_PAGE

    steps: tuple[AnchoredStepView, ...]
