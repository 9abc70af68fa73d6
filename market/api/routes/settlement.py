"""Epochs with their proofs, and batches with their leaves: what claims and audits need."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Response

from contracts.terms.errors import NotFound
from market.api.context import IMMUTABLE, AccountPath, DigestPath, WorkDep, answer
from market.api.cursors import Asked, Listing, asked
from market.api.refusals import refused
from market.api.views import batch_view, epoch_row, epoch_summary, epoch_view, proof_view
from market.bodies import BatchView, EpochsView, EpochView, ProofView
from market.service.rows import BatchRow, EpochRow

router = APIRouter(tags=["settlement"])

EPOCHS = Listing(EpochRow, "-epoch")
EpochPath = Annotated[int, Path(ge=1, le=2**47, description="number of an epoch", examples=[12])]


@router.get("/epochs", response_model=EpochsView)
async def get_epochs(work: WorkDep, asked: Annotated[Asked, asked()]) -> Response:
    """List epochs, newest first."""
    async with work:
        part = await EPOCHS.part(asked, work)
    views = tuple(epoch_summary(row) for row in part.rows)
    return answer(EpochsView(epochs=views, next=part.next))


@router.get("/epochs/{number}", response_model=EpochView, responses=refused(NotFound))
async def get_epoch(number: EpochPath, work: WorkDep) -> Response:
    """An epoch with its debits and all leaves of its root."""
    async with work:
        row = await epoch_row(number, work)
        return answer(await epoch_view(row, work), headers=_caching(row))


@router.get("/epochs/{number}/proofs/{name}", response_model=ProofView, responses=refused(NotFound))
async def get_proof(number: EpochPath, account: AccountPath, work: WorkDep) -> Response:
    """What a claim of an account wants, under this epoch's root."""
    async with work:
        row = await epoch_row(number, work)
        return answer(await proof_view(row, account, work), headers=_caching(row))


@router.get("/batches/{name}", response_model=BatchView, responses=refused(NotFound))
async def get_batch(root: DigestPath, work: WorkDep) -> Response:
    """A batch with its leaves."""
    async with work:
        row = await work[BatchRow].get(root)
        if row is None:
            raise NotFound("no such batch", root=root.hex())
        headers = IMMUTABLE if row.coin is not None else None
        return answer(await batch_view(row, work), headers=headers)


def _caching(row: EpochRow) -> Mapping[str, str] | None:
    """A final root never changes, and neither does what it is made of."""
    return IMMUTABLE if row.state == "final" else None
