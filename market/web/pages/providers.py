"""Who earns what: a provider's name, machines and money, and what a job pays to whom.

Both pages show earnings line by line, the newest first, from the work to the transaction.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import Address, JobId
from market.api.context import AccountPath, Api, ApiDep, JobPath, WorkDep, job_of, parse_bytes
from market.bodies.earnings import EarningView, PartsView
from market.domain.reputation import MEMORY, MOST, NEWCOMER
from market.service.account_pay import jobs_of
from market.service.find_job import find_job
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_earnings import earnings_of
from market.service.show_jobs import job_outcome
from market.service.show_network import show_account
from market.service.show_offers import show_provider
from market.service.show_slashes import find_convictions
from market.service.show_spend import spend_of
from market.web.rendering import page

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
    now = api.market.clock()
    if start is None:
        first = await earnings_of(account, work, api.followed, job=job, limit=1, now=now)
        start = max(0, (first.num_lines or 0) - SHOWN)
    found = await earnings_of(
        account, work, api.followed, job=job, after=(job, start), limit=SHOWN, now=now
    )
    num_lines = found.num_lines or 0
    return LinesPage(account, job, found.parts, num_lines, start, found.lines[::-1])


router = APIRouter()

MAX_JOBS = 25


@router.get("/providers/{account}")
async def get_provider_page(
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
    job: Annotated[str, Query(max_length=66)] = "",
    start: StartQuery = None,
) -> Response:
    """An account; its lines in one job, which is the newest that it worked in if none is named."""
    now = api.market.clock()
    async with work:
        provider = await show_provider(account, now, work)
        jobs = await _jobs(account, work)
    found = await find_convictions(work, account=account)
    money = await show_account(account, api.market.chain, work)
    of_job = job_of(job) if job else JobId(jobs[0].job) if jobs else None
    return page(
        "provider.html",
        here="market",
        now=now,
        provider=provider,
        newcomer=NEWCOMER,
        most=MOST,
        memory=MEMORY,
        money=money,
        jobs=jobs,
        shown=None if of_job is None else await lines_page(account, of_job, start, api, work),
        convictions=found.convictions,
    )


async def _jobs(account: Address, work: UnitOfWork) -> list[JobRow]:
    """Jobs that it had a lease of, the newest first."""
    names = tuple(await jobs_of(account, work))
    return await work[JobRow].where(job=names, order="-posted_at", limit=MAX_JOBS) if names else []


@router.get("/jobs/{job}/spend")
async def get_spend_page(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    account: Annotated[str, Query(max_length=80)] = "",
    start: StartQuery = None,
) -> Response:
    """On whom a job spends, and each line of one of them: without a name, of who earned most."""
    async with work:
        row = await find_job(job, work)
    now = api.market.clock()
    spend = await spend_of(job, work, api.followed, limit=1, now=now)
    most = spend.accounts[0].account if spend.accounts else None
    wanted = Address(parse_bytes(account, 20)) if account else most
    return page(
        "spend.html",
        here="market",
        now=now,
        name=row.name,
        outcome=job_outcome(row),
        spend=spend,
        shown=None if wanted is None else await lines_page(wanted, job, start, api, work),
    )
