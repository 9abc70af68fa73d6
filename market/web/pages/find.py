"""From something that somebody pasted to the page about it."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse

from contracts.terms.errors import NotFound
from contracts.terms.typed_names import digits_of, parse_name

router = APIRouter()

_PAGE_BY_DIGITS = {64: "jobs", 40: "providers"}


@router.get("/find")
async def get_find(q: Annotated[str, Query(max_length=256)] = "") -> RedirectResponse:
    """The page of a job's id or of an account.

    Raises:
        NotFound: it is neither. Malformed: it is one with a slip.
    """
    num_digits = len(digits_of(q))
    kind = _PAGE_BY_DIGITS.get(num_digits)
    if kind is None:
        raise NotFound("neither a job's id (64 hex digits) nor an account (40 hex digits)")
    name = parse_name(q, "job or account", num_digits // 2)
    return RedirectResponse(f"/{kind}/{name.hex()}", 303)
