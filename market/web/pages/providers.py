"""What is known of a provider: its name and why, its machines, its money line by line."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import Address, JobId
from market.api.context import AccountPath, ApiDep, WorkDep, job_of
from market.domain.reputation import MEMORY, MOST, NEWCOMER
from market.service.account_pay import jobs_of
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_network import show_account
from market.service.show_offers import show_provider
from market.service.show_slashes import find_convictions
from market.web.pages.lines import StartQuery, lines_page
from market.web.rendering import page

router = APIRouter()

MAX_ENTRIES = 100
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
    found = await find_convictions(work, api.market.chain, account=account)
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
        entries=money.entries[:MAX_ENTRIES],
        convictions=found.convictions,
    )


async def _jobs(account: Address, work: UnitOfWork) -> list[JobRow]:
    """Jobs that it had a lease of, the newest first."""
    names = tuple(await jobs_of(account, work))
    return await work[JobRow].where(job=names, order="-posted_at", limit=MAX_JOBS) if names else []
