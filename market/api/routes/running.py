"""A job that runs: where its money is and how long it lasts, and its peers by stage."""

from dataclasses import asdict
from typing import Annotated, cast

from fastapi import APIRouter, Query, Response

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import MAX_STEPS, JobId
from contracts.terms.moments import UnixMillis
from market.api.context import Api, ApiDep, JobPath, WorkDep, answer
from market.api.refusals import refused
from market.api.routes.earnings import period_of
from market.api.views import reputation_view
from market.bodies import (
    PEERS_PAGE,
    SPEND_PAGE,
    AccountSpendView,
    AuditSpendView,
    JobState,
    OutlookView,
    PaceView,
    PeersView,
    SeatView,
    SpendView,
    StepSpendView,
)
from market.domain.spend import Pace
from market.service.ports import UnitOfWork
from market.service.show_peers import Seat, peers_of
from market.service.show_spend import Spend, spend_of

router = APIRouter(tags=["running jobs"])


@router.get("/jobs/{name}/spend", response_model=SpendView, responses=refused(NotFound))
async def get_spend(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=MAX_STEPS, description="steps beyond this one")] = 0,
    limit: Annotated[int, Query(ge=1, le=SPEND_PAGE, description="steps at most")] = SPEND_PAGE,
) -> Response:
    """What a job has spent, on whom and step by step, how fast, and how long its budget lasts."""
    return answer(await spend_view(job, api, work, after=after, limit=limit))


@router.get("/jobs/{name}/peers", response_model=PeersView, responses=refused(NotFound))
async def get_peers(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    after: Annotated[int, Query(ge=0, le=2**40, description="so many peers are left out")] = 0,
    limit: Annotated[int, Query(ge=1, le=PEERS_PAGE, description="peers at most")] = PEERS_PAGE,
) -> Response:
    """The grid of stages and peers: who serves, what each did last, and what it earned."""
    return answer(await peers_view(job, api, work, after=after, limit=limit))


async def spend_view(
    job: JobId, api: Api, work: UnitOfWork, *, after: int = 0, limit: int = SPEND_PAGE
) -> SpendView:
    """What a job has spent; its steps beyond `after`."""
    period = await period_of(api)
    async with work:
        found = await spend_of(job, work, api.followed, after=after, limit=limit, period=period)
    return _spend_view(found, api.market.clock())


async def peers_view(
    job: JobId, api: Api, work: UnitOfWork, *, after: int = 0, limit: int = PEERS_PAGE
) -> PeersView:
    """A job's seats beyond the first `after`."""
    now = api.market.clock()
    async with work:
        found = await peers_of(job, work, api.followed, now=now, after=after, limit=limit)
    end = after + len(found.seats)
    return PeersView(
        job=job,
        stages=found.stages,
        step=found.step,
        worked=found.worked,
        num_seats=found.num_seats,
        seats=tuple(_seat_view(each) for each in found.seats),
        next=end if found.seats and end < found.num_seats else None,
    )


def _spend_view(found: Spend, clock: UnixMillis) -> SpendView:
    row = found.row
    return SpendView(
        job=row.job,
        state=cast(JobState, row.state),
        clock=clock,
        budget=row.budget,
        escrowed=found.escrowed,
        unearned=found.unearned,
        earned=found.earned,
        vested=found.vested,
        frozen=found.frozen,
        forfeited=found.forfeited,
        debited=found.debited,
        claimed=BaseUnits(sum(each.claimed for each in found.accounts)),
        refunded=found.refunded,
        epoch_cap=found.epoch_cap,
        audits=None if found.audits is None else AuditSpendView(**asdict(found.audits)),
        step=row.step,
        num_steps=row.steps,
        pace=None if found.pace is None else _pace_view(found.pace),
        outlook=None if found.outlook is None else OutlookView(**asdict(found.outlook)),
        num_accounts=found.num_accounts,
        accounts=tuple(AccountSpendView(**asdict(each)) for each in found.accounts),
        steps=tuple(StepSpendView(**asdict(each)) for each in found.steps),
    )


def _pace_view(pace: Pace) -> PaceView:
    return PaceView(
        steps=pace.steps,
        millis_a_step=pace.millis_a_step,
        spent_a_step=pace.spent_a_step,
        spent_an_hour=pace.spent_an_hour,
    )


def _seat_view(seat: Seat) -> SeatView:
    return SeatView(
        lease=seat.lease,
        account=seat.account,
        peer=seat.peer,
        stage=seat.stage,
        state=seat.state,
        device_class=seat.device_class,
        price=seat.price,
        heard_at=seat.heard_at,
        units=seat.units,
        share=seat.share,
        milli_units_per_second=seat.milli_units_per_second,
        tokens_per_second=seat.tokens_per_second,
        earned=seat.pay.earned,
        waiting=seat.pay.waiting,
        vested=seat.pay.vested,
        frozen=seat.pay.frozen,
        forfeited=seat.pay.forfeited,
        reputation=reputation_view(seat.reputation),
    )
