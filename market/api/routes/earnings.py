"""Earnings: each line from the work to the transaction, or why it waits and until when."""

from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, Digest, JobId
from market.api.context import AccountPath, Api, ApiDep, WorkDep, answer, parse_bytes
from market.api.refusals import refused
from market.bodies import (
    EARNINGS_PAGE,
    AnchorView,
    DrawnView,
    EarningsView,
    EarningView,
    PaidPartView,
    PartsView,
    WaitsForView,
)
from market.domain.earnings import PartPaid, Parts, Reason
from market.service.ports import UnitOfWork
from market.service.rows import BatchRow
from market.service.show_earnings import Drawing, EarnedLine, Period, earnings_of

router = APIRouter(tags=["earnings"])

MAX_CURSOR = 96


@router.get("/accounts/{name}/earnings", response_model=EarningsView, responses=refused(NotFound))
async def get_earnings(
    account: AccountPath,
    api: ApiDep,
    work: WorkDep,
    job: Annotated[str | None, Query(max_length=66, description="32 bytes in hex")] = None,
    after: Annotated[str | None, Query(max_length=MAX_CURSOR, description="a cursor")] = None,
    limit: Annotated[
        int, Query(ge=1, le=EARNINGS_PAGE, description="lines at most")
    ] = EARNINGS_PAGE,
) -> Response:
    """Every peer-step and paid audit of an account beyond a cursor: where its pay is, and why."""
    of_job = None if job is None else JobId(parse_bytes(job, 32))
    place = None if after is None else read_cursor(after)
    return answer(await earnings_view(account, api, work, job=of_job, after=place, limit=limit))


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
        found = await earnings_of(
            account, work, api.followed,
            job=job, after=after, limit=limit, now=now, period=period,
        )  # fmt: skip
    return EarningsView(
        account=account,
        job=job,
        clock=now,
        parts=parts_view(found.parts, whole=job is not None),
        num_lines=found.num_lines,
        lines=tuple(earning_view(each) for each in found.lines),
        next=None if found.after is None else cursor_of(*found.after),
    )


async def period_of(api: Api) -> Period:
    """How epochs go on, from the Parameters contract."""
    parameters = (await api.network()).parameters
    return Period(parameters["epoch_length"] * 1000, BaseUnits(parameters["max_epoch_cap"]))


def cursor_of(job: JobId, number: int) -> str:
    """A place in a list that goes over several jobs."""
    return f"{job.hex()}:{number}"


def read_cursor(text: str) -> tuple[JobId, int]:
    """The place that a cursor names.

    Raises:
        Malformed: it is none of ours.
    """
    name, _, number = text.partition(":")
    if not number.isascii() or not number.isdecimal() or len(number) > 16:
        raise Malformed("after: no cursor of this list")
    return JobId(parse_bytes(name, 32)), int(number)


def earning_view(found: EarnedLine) -> EarningView:
    """One line."""
    line = found.line
    return EarningView(
        cursor=cursor_of(found.job, line.number),
        kind=line.kind,
        job=found.job,
        peer=line.peer,
        stage=line.stage,
        step=line.step,
        round=line.round,
        units=line.num_units,
        flops=line.flops,
        price=line.price,
        subject=line.subject,
        audited=line.audited,
        worker=line.worker,
        sealed=line.sealed,
        seal=found.seal,
        anchor=None if found.batch is None else anchor_view(found.batch),
        draw=drawn_view(line.rate, found.drawing),
        amount=found.amount,
        state=found.state,
        parts=parts_view(found.parts, whole=True),
        paid=tuple(paid_view(each, found.claims.get(each.epoch.epoch)) for each in found.paid),
        vested=line.resolved,
        waits_for=None if found.reason is None else reason_view(found.reason),
    )


def parts_view(parts: Parts, *, whole: bool) -> PartsView:
    """Sums by state; of all jobs together nobody adds up what is frozen or lost."""
    return PartsView(
        waiting=parts.waiting,
        frozen=parts.frozen if whole else None,
        forfeited=parts.forfeited if whole else None,
        vested=parts.vested,
        debited=parts.debited,
        final=parts.final,
        claimed=parts.claimed,
    )


def anchor_view(batch: BatchRow) -> AnchorView:
    """A batch that is confirmed on chain."""
    assert batch.block is not None
    return AnchorView(
        batch=batch.root, block=batch.block, transaction=batch.transaction, coin=batch.coin
    )


def reason_view(reason: Reason) -> WaitsForView:
    """Why a line waits."""
    return WaitsForView(code=reason.code, sentence=reason.sentence, step=reason.step, at=reason.at)


def spelled_rate(rate: Fraction) -> str:
    """An exact rational."""
    return f"{rate.numerator}/{rate.denominator}"


def paid_view(part: PartPaid, claimed_by: Digest | None) -> PaidPartView:
    """What of a line an epoch pays, and the transaction that claimed it."""
    epoch = part.epoch
    return PaidPartView(
        epoch=epoch.epoch,
        amount=part.amount,
        state=epoch.state,
        root=epoch.root,
        transaction=epoch.transaction,
        window_ends=epoch.window_ends,
        claimed_by=claimed_by,
    )


def drawn_view(rate: Fraction | None, drawing: Drawing) -> DrawnView | None:
    """Whether a message was drawn; None of one that never is."""
    if rate is None:
        return None
    return DrawnView(
        rate=spelled_rate(rate),
        drawn=drawing.is_drawn,
        outcome=drawing.outcome,
        auditors=drawing.auditors,
    )
