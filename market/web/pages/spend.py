"""What a poster pays, line by line: from the work to the transaction, or why it waits."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.ids import Address
from market.api.context import ApiDep, JobPath, WorkDep, parse_bytes
from market.api.routes.running import spend_view
from market.service.find_job import find_job
from market.service.show_jobs import job_outcome
from market.web.pages.lines import StartQuery, lines_page
from market.web.rendering import page

router = APIRouter()


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
    spend = await spend_view(job, api, work, limit=1)
    most = spend.accounts[0].account if spend.accounts else None
    wanted = Address(parse_bytes(account, 20)) if account else most
    return page(
        "spend.html",
        here="market",
        now=api.market.clock(),
        name=row.name,
        outcome=job_outcome(row),
        spend=spend,
        shown=None if wanted is None else await lines_page(wanted, job, start, api, work),
    )
