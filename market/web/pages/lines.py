"""Which lines of what somebody earned does a page show? The newest first, some at a time."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from contracts.terms.ids import Address, JobId
from market.api.context import Api
from market.api.routes.earnings import earnings_view
from market.bodies.earnings import EarningView, PartsView
from market.service.ports import UnitOfWork

SHOWN = 25

StartQuery = Annotated[int | None, Query(ge=0, le=2**53)]
"""Lines beyond this number; without it, the newest ones."""


@dataclass(frozen=True)
class LinesPage:
    """Lines of one account in one job, beyond number `start`."""

    account: Address
    job: JobId
    parts: PartsView
    num_lines: int
    start: int
    lines: tuple[EarningView, ...]  # the newest first

    @property
    def older(self) -> int | None:
        """Where the page before begins."""
        return max(0, self.start - SHOWN) if self.start else None

    @property
    def newer(self) -> int | None:
        """Where the next page begins."""
        end = self.start + len(self.lines)
        return end if self.lines and end < self.num_lines else None


async def lines_page(
    account: Address, job: JobId, start: int | None, api: Api, work: UnitOfWork
) -> LinesPage:
    """A page of lines as the API has them."""
    if start is None:
        first = await earnings_view(account, api, work, job=job, limit=1)
        start = max(0, (first.num_lines or 0) - SHOWN)
    found = await earnings_view(account, api, work, job=job, after=(job, start), limit=SHOWN)
    num_lines = found.num_lines or 0
    return LinesPage(account, job, found.parts, num_lines, start, found.lines[::-1])
