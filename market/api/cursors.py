"""What a caller asks of a list: how many rows, behind which cursor."""

from typing import Annotated, Any

from fastapi import Depends, Query

from market.bodies import LIST_PAGE, Cursor
from market.service.listing import FIRST as FIRST  # again, for routes of slashes, until merged
from market.service.listing import Asked as Asked
from market.service.listing import Listing as Listing
from market.service.listing import Part as Part


def asked(default: int = LIST_PAGE) -> Any:
    """A dependency that yields what was `Asked`; `default` rows unless the caller says."""

    async def read(
        limit: Annotated[int, Query(ge=1, le=LIST_PAGE, description="rows at most")] = default,
        cursor: Annotated[Cursor | None, Query(description="`next` of the part before")] = None,
    ) -> Asked:
        return Asked(limit, cursor)

    return Depends(read)
