"""What a caller asks of a list: how many rows, behind which cursor."""

from typing import Annotated, Any

from fastapi import Depends, Query

from market.bodies.base import LIST_PAGE, Cursor
from market.service.listing import Asked


def asked(default: int = LIST_PAGE) -> Any:
    """A dependency that yields what was `Asked`; `default` rows unless the caller says."""

    async def read(
        limit: Annotated[int, Query(ge=1, le=LIST_PAGE, description="rows at most")] = default,
        cursor: Annotated[Cursor | None, Query(description="`next` of the part before")] = None,
    ) -> Asked:
        return Asked(limit, cursor)

    return Depends(read)
