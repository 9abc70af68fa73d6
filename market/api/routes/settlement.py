"""Epochs with their proofs, and batches with their leaves: what claims and audits need."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Response

from contracts.terms.errors import NotFound
from market.api.context import IMMUTABLE, AccountPath, DigestPath, WorkDep, answer
from market.api.cursors import asked
from market.api.refusals import refused
from market.bodies.settlement import BatchView, EpochState, EpochsView, EpochView, ProofView
from market.service.listing import Asked
from market.service.show_epochs import list_epochs, show_batch, show_epoch, show_proof

router = APIRouter(tags=["settlement"])

EpochPath = Annotated[int, Path(ge=1, le=2**47, description="number of an epoch", examples=[12])]


@router.get("/epochs", response_model=EpochsView)
async def get_epochs(work: WorkDep, asked: Annotated[Asked, asked()]) -> Response:
    """List epochs, newest first."""
    return answer(await list_epochs(asked, work))


@router.get("/epochs/{number}", response_model=EpochView, responses=refused(NotFound))
async def get_epoch(number: EpochPath, work: WorkDep) -> Response:
    """An epoch with its debits and all leaves of its root."""
    shown = await show_epoch(number, work)
    return answer(shown, headers=_caching(shown.state))


@router.get("/epochs/{number}/proofs/{name}", response_model=ProofView, responses=refused(NotFound))
async def get_proof(number: EpochPath, account: AccountPath, work: WorkDep) -> Response:
    """What a claim of an account wants, under this epoch's root."""
    shown = await show_proof(number, account, work)
    return answer(shown, headers=_caching(shown.state))


@router.get("/batches/{name}", response_model=BatchView, responses=refused(NotFound))
async def get_batch(root: DigestPath, work: WorkDep) -> Response:
    """A batch with its leaves."""
    shown = await show_batch(root, work)
    return answer(shown, headers=IMMUTABLE if shown.coin is not None else None)


def _caching(state: EpochState) -> Mapping[str, str] | None:
    """A final root never changes, and neither does what it is made of."""
    return IMMUTABLE if state == "final" else None
