"""Earnings: each line from the work to the transaction, or why it waits and until when."""

from typing import Annotated

from fastapi import Query

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address, JobId
from market.api.context import AccountPath, Api, ApiDep, JobQuery, WorkDep, parse_bytes
from market.api.routing import Routes
from market.bodies.earnings import EARNINGS_PAGE, EarningsView
from market.bodies.routes import GET_EARNINGS
from market.service.ports import UnitOfWork
from market.service.show_earnings import Period, earnings_of

router = Routes(tags=["earnings"])

MAX_CURSOR = 96


@router.on(GET_EARNINGS)
async def get_earnings(
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
    job: JobQuery = None,
    after: Annotated[str | None, Query(max_length=MAX_CURSOR, description="a cursor")] = None,
    limit: Annotated[
        int, Query(ge=1, le=EARNINGS_PAGE, description="lines at most")
    ] = EARNINGS_PAGE,
) -> EarningsView:
    """Every peer-step and paid audit of an account beyond a cursor: where its pay is, and why."""
    place = None if after is None else read_cursor(after)
    return await earnings_view(account, api, work, job=job, after=place, limit=limit)


async def earnings_view(
    account: Address,
    api: Api,
    work: UnitOfWork,
    *,
    job: JobId | None = None,
    after: tuple[JobId, int] | None = None,
    limit: int = EARNINGS_PAGE,
) -> EarningsView:
    """A page of an account's lines; see `earnings_of`."""
    now, period = api.market.clock(), await period_of(api)
    async with work:
        return await earnings_of(
            account, work, api.followed,
            job=job, after=after, limit=limit, now=now, period=period,
        )  # fmt: skip


async def period_of(api: Api) -> Period:
    """How epochs go on, from the Parameters contract."""
    parameters = (await api.network()).parameters
    return Period(parameters["epoch_length"] * 1000, BaseUnits(parameters["max_epoch_cap"]))


def read_cursor(text: str) -> tuple[JobId, int]:
    """The place that a cursor names.

    Raises:
        Malformed: it is none of ours.
    """
    name, _, number = text.partition(":")
    if not number.isascii() or not number.isdecimal() or len(number) > 16:
        raise Malformed("after: no cursor of this list")
    return JobId(parse_bytes(name, 32)), int(number)
