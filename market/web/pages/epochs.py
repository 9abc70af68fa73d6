"""Epochs: what each took from jobs and grants to accounts, and the proof of one account's pay."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.responses import RedirectResponse

from market.api.context import AccountPath, ApiDep, WorkDep
from market.api.routes.settlement import EpochPath
from market.api.views import epoch_row, epoch_summary, epoch_view, proof_view
from market.bodies import API_PREFIX
from market.service.rows import EpochRow
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
    async with work:
        rows = await work[EpochRow].where(order="-epoch", after=before, limit=EPOCHS_PAGE)
    return page(
        "epochs.html",
        here="epochs",
        now=api.market.clock(),
        epochs=[epoch_summary(row) for row in rows],
        next_before=rows[-1].epoch if len(rows) == EPOCHS_PAGE else None,
    )


@router.get("/epochs/{number}")
async def get_epoch_page(number: EpochPath, api: ApiDep, work: WorkDep) -> Response:
    """An epoch."""
    async with work:
        epoch = await epoch_view(await epoch_row(number, work), work)
    return page("epoch.html", here="epochs", now=api.market.clock(), epoch=epoch)


@router.get("/epochs/{number}/proof")
async def get_proof_form(
    number: EpochPath, account: Annotated[str, Query(max_length=128)] = ""
) -> Response:
    """What the form on an epoch's page asks for has an address of its own."""
    return RedirectResponse(f"/epochs/{number}/proofs/{account.strip()}", 303)


@router.get("/epochs/{number}/proofs/{name}")
async def get_proof_page(
    number: EpochPath, account: AccountPath, api: ApiDep, work: WorkDep
) -> Response:
    """The proof of one account's pay, which the browser computes again."""
    async with work:
        row = await epoch_row(number, work)
        proof = await proof_view(row, account, work)
    source = f"{API_PREFIX}/epochs/{number}/proofs/{account.hex()}"
    return page(
        "proof.html",
        here="epochs",
        now=api.market.clock(),
        epoch=epoch_summary(row),
        proof=proof,
        source=source,
    )
