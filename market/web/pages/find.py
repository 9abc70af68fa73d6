"""From something that somebody pasted to the page about it."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse

from contracts.terms.errors import NotFound
from contracts.terms.ids import bare_hex

router = APIRouter()

_PAGE_BY_DIGITS = {64: "jobs", 40: "providers"}


@router.get("/find")
async def get_find(q: Annotated[str, Query(max_length=256)] = "") -> RedirectResponse:
    """The page of a job's id or of an account.

    Raises:
        NotFound: it is neither.
    """
    name = bare_hex(q).lower()
    kind = _PAGE_BY_DIGITS.get(len(name))
    if kind is None or not set(name) <= set("0123456789abcdef"):
        raise NotFound("neither a job's id (64 hex digits) nor an account (40 hex digits)")
    return RedirectResponse(f"/{kind}/{name}", 303)
