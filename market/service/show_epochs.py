"""What is shown of epochs, proofs of pay and batches: all that claims and audits need."""

from collections.abc import Iterable

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from market.bodies.settlement import (
    BatchEntryView,
    BatchView,
    DebitView,
    EpochLeafView,
    EpochSummary,
    EpochsView,
    EpochView,
    JobPay,
    ProofStep,
    ProofView,
)
from market.service.listing import Asked, Listing
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, DebitRow, EpochRow
from market.service.settle_epoch import load_settlement

EPOCHS = Listing(EpochRow, "-epoch")


async def list_epochs(asked: Asked, work: UnitOfWork) -> EpochsView:
    """A part of all epochs, newest first.

    Raises:
        Malformed: the cursor is none of this list.
    """
    async with work:
        part = await EPOCHS.part(asked, work)
    return EpochsView(epochs=tuple(map(EpochSummary.of, part.rows)), next=part.next)


async def newest_epochs(
    work: UnitOfWork, *, before: int | None, limit: int
) -> tuple[EpochSummary, ...]:
    """The newest epochs, or the newest before a number, newest first."""
    async with work:
        rows = await work[EpochRow].where(order="-epoch", after=before, limit=limit)
    return tuple(map(EpochSummary.of, rows))


async def show_epoch(number: int, work: UnitOfWork) -> EpochView:
    """An epoch with everything that its root is made of.

    Raises:
        NotFound: no such epoch.
    """
    async with work:
        row = await epoch_row(number, work)
        debits = await work[DebitRow].where(epoch=row.epoch)
        settlement = await load_settlement(work, row.epoch)
    leaves = (
        EpochLeafView.of(each, jobs_root=each.jobs_root.hash, jobs=_job_pays(each.jobs))
        for each in settlement.accounts
    )
    return EpochView.of(row, debits=tuple(map(DebitView.of, debits)), leaves=tuple(leaves))


async def epoch_row(number: int, work: UnitOfWork) -> EpochRow:
    """An epoch's row.

    Raises:
        NotFound: no such epoch.
    """
    async with work:
        row = await work[EpochRow].get(EpochNumber(number))
    if row is None:
        raise NotFound("no such epoch", epoch=number)
    return row


async def show_proof(number: int, account: Address, work: UnitOfWork) -> ProofView:
    """What a claim of `account` wants, under the root of an epoch.

    Raises:
        NotFound: no such epoch, or the account was never paid.
    """
    async with work:
        row = await epoch_row(number, work)
        settlement = await load_settlement(work, row.epoch)
    leaf, proof = settlement.claim_proof(account)
    return ProofView.of(
        row,
        account=account,
        jobs_root=leaf.jobs_root.hash,
        cumulative=leaf.cumulative,
        jobs=_job_pays(leaf.jobs),
        root_sum=row.sum,
        index=[each.account for each in settlement.accounts].index(account),
        siblings=tuple(ProofStep.of(node, left=left) for node, left in proof.siblings),
    )


async def show_batch(root: Digest, work: UnitOfWork) -> BatchView:
    """A batch with its leaves.

    Raises:
        NotFound: no such batch.
    """
    async with work:
        row = await work[BatchRow].get(root)
        if row is None:
            raise NotFound("no such batch", root=root.hex())
        entries = await work[BatchEntryRow].where(root=root)
    return BatchView.of(row, entries=tuple(map(BatchEntryView.of, entries)))


def _job_pays(jobs: Iterable[tuple[JobId, BaseUnits]]) -> tuple[JobPay, ...]:
    return tuple(JobPay(job=job, cumulative=amount) for job, amount in jobs)
