"""Epochs with their proofs, and batches with their leaves: what claims and audits need."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Response

from market.api.context import IMMUTABLE, AccountPath, DigestPath, WorkDep, answer
from market.api.cursors import asked
from market.api.routing import Routes
from market.bodies.routes import GET_BATCH, GET_EPOCH, GET_EPOCHS, GET_PROOF
from market.bodies.settlement import EpochState, EpochsView
from market.service.listing import Asked
from market.service.show_epochs import list_epochs, show_batch, show_epoch, show_proof

router = Routes(tags=["settlement"])

EpochPath = Annotated[int, Path(ge=1, le=2**47, description="number of an epoch", examples=[12])]


@router.on(GET_EPOCHS)
async def get_epochs(work: WorkDep, asked: Annotated[Asked, asked()]) -> EpochsView:
    """List epochs, newest first."""
    return await list_epochs(asked, work)


@router.on(GET_EPOCH)
async def get_epoch(number: EpochPath, work: WorkDep) -> Response:
    """An epoch with its debits and all leaves of its root."""
    shown = await show_epoch(number, work)
    return answer(shown, headers=_caching(shown.state))


@router.on(GET_PROOF)
async def get_proof(number: EpochPath, account: AccountPath, work: WorkDep) -> Response:
    """What a claim of an account wants, under this epoch's root."""
    shown = await show_proof(number, account, work)
    return answer(shown, headers=_caching(shown.state))


@router.on(GET_BATCH)
async def get_batch(root: DigestPath, work: WorkDep) -> Response:
    """A batch with its leaves."""
    shown = await show_batch(root, work)
    return answer(shown, headers=IMMUTABLE if shown.coin is not None else None)


def _caching(state: EpochState) -> Mapping[str, str] | None:
    """A final root never changes, and neither does what it is made of."""
    return IMMUTABLE if state == "final" else None
