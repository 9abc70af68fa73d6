"""Epochs: what each took from jobs and grants to accounts, and the proof of one account's pay."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.responses import RedirectResponse

from market.api.context import AccountPath, ApiDep, WorkDep
from market.api.routes.settlement import EpochPath
from market.bodies.base import API_PREFIX
from market.bodies.settlement import EpochSummary
from market.service.show_epochs import epoch_row, newest_epochs, show_epoch, show_proof
from market.web.rendering import page

router = APIRouter()

EPOCHS_PAGE = 100


@router.get("/epochs")
async def get_epochs_page(
    api: ApiDep,
    work: WorkDep,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> Response:
    """Epochs, newest first."""
    epochs = await newest_epochs(work, before=before, limit=EPOCHS_PAGE)
    return page(
        "epochs.html",
        here="epochs",
        now=api.market.clock(),
        epochs=epochs,
        next_before=epochs[-1].epoch if len(epochs) == EPOCHS_PAGE else None,
    )


@router.get("/epochs/{number}")
async def get_epoch_page(number: EpochPath, api: ApiDep, work: WorkDep) -> Response:
    """An epoch."""
    epoch = await show_epoch(number, work)
    return page("epoch.html", here="epochs", now=api.market.clock(), epoch=epoch)


@router.get("/epochs/{number}/proof")
async def get_proof_form(
    number: EpochPath, account: Annotated[str, Query(max_length=128)] = ""
) -> Response:
    """What the form on an epoch's page asks for has an address of its own."""
    return RedirectResponse(f"/epochs/{number}/proofs/{account.strip()}", 303)


@router.get("/epochs/{number}/proofs/{account}")
async def get_proof_page(
    number: EpochPath, account: AccountPath, api: ApiDep, work: WorkDep
) -> Response:
    """The proof of one account's pay, which the browser computes again."""
    async with work:
        epoch = EpochSummary.of(await epoch_row(number, work))
        proof = await show_proof(number, account, work)
    source = f"{API_PREFIX}/epochs/{number}/proofs/{account.hex()}"
    return page(
        "proof.html",
        here="epochs",
        now=api.market.clock(),
        epoch=epoch,
        proof=proof,
        source=source,
    )
