"""What a job has spent and on whom, how fast, and how long its budget lasts.

Sums are of the newest seal, and of the escrow's confirmed events.
Units: base units, milliseconds.
"""

from collections.abc import Mapping

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import FLOPS_PER_PFLOP, NOTHING, BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import (
    SPEND_PAGE,
    AccountSpendView,
    AuditSpendView,
    OutlookView,
    PaceView,
    SpendView,
    StepSpendView,
)
from market.domain.earnings import OwnPay, outlook_of, pace_of, parts_of_all
from market.domain.jobs import JobState
from market.service.account_pay import newest_seal
from market.service.coding import decode_pay, spec_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LimitRow, SealRow
from market.service.show_money import money_totals, recent_seals
from verification.docket import Docket

MAX_ACCOUNTS = 200


async def spend_of(
    job: JobId,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    after: int = 0,
    limit: int = SPEND_PAGE,
    now: UnixMillis,
) -> SpendView:
    """What a job has spent; its steps beyond `after`.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        found = await followed.load(job, row.num_messages, work)
        earnings, audits = found.earnings, _audits(row, found)
        held = {each: (earnings.frozen(each), earnings.forfeited(each)) for each in earnings.lines}
        totals = await money_totals(row, work)
        seal = await newest_seal(row, work)
        said = {} if seal is None else {leaf.account: leaf for leaf in decode_pay(seal.pay)}
        limits = {each.account: each for each in await work[LimitRow].where(job=job)}
        recent = await recent_seals(row, work)
        pace = pace_of(recent)
        outlook: OutlookView | None = None
        if pace is not None and row.state == JobState.RUNNING.value:
            last = row.step + row.steps - row.trained
            outlook = outlook_of(pace, recent[-1], steps=last, budget=totals["funded"])
        names = sorted(said, key=lambda each: (-said[each].earned, each))
        return SpendView.of(
            row,
            clock=now,
            **totals,
            frozen=sum(frozen for frozen, _ in held.values()),
            forfeited=sum(forfeited for _, forfeited in held.values()),
            audits=audits,
            num_steps=row.steps,
            pace=None if pace is None else PaceView.of(pace),
            outlook=outlook,
            num_accounts=len(names),
            accounts=_accounts(names[:MAX_ACCOUNTS], said, limits, held),
            steps=await _steps(job, work, after=after, limit=limit),
        )


def _accounts(
    accounts: list[Address],
    said: Mapping[Address, PayLeaf],
    limits: Mapping[Address, LimitRow],
    held: Mapping[Address, tuple[BaseUnits, BaseUnits]],
) -> tuple[AccountSpendView, ...]:
    found = []
    for account in accounts:
        leaf, limit = said[account], limits.get(account)
        pay = OwnPay(
            earned=leaf.earned,
            vested=leaf.vested,
            limit=NOTHING if limit is None else limit.limit,
            claimed=NOTHING if limit is None else limit.claimed,
        )
        parts = parts_of_all(pay, *held.get(account, (NOTHING, NOTHING)))
        found.append(AccountSpendView.of(parts, account=account, earned=leaf.earned))
    return tuple(found)


def _audits(row: JobRow, found: Followed) -> AuditSpendView | None:
    """What audits have cost of their part of the budget, and may cost at the dearest price."""
    audit, record = spec_of(row).message.rules.audit, found.history.record
    if audit is None:
        return None
    if record is None or not isinstance(record.checking, Docket):
        return AuditSpendView(budget=audit.budget, spent=NOTHING, reserved=NOTHING)
    docket = record.checking
    spent, reserved = _up(docket.spent), _up(docket.reserved * docket.rules.dearest)
    left = BaseUnits(audit.budget - spent)
    return AuditSpendView(budget=audit.budget, spent=spent, reserved=min(reserved, left))


def _up(wide: int) -> BaseUnits:
    return BaseUnits(-(-wide // FLOPS_PER_PFLOP))


async def _steps(
    job: JobId, work: UnitOfWork, *, after: int, limit: int
) -> tuple[StepSpendView, ...]:
    seals = await work[SealRow].where(job=job, order="step", after=after, limit=limit)
    before = await work[SealRow].get(job, after) if after else None
    earned, vested = (0, 0) if before is None else (before.earned, before.vested)
    found = []
    for seal in seals:
        more = {"earned": seal.earned - earned, "vested": seal.vested - vested}
        found.append(StepSpendView.of(seal, seal=seal.digest, **more))
        earned, vested = seal.earned, seal.vested
    return tuple(found)
