"""What a job has spent and on whom, how fast, and how long its budget lasts.

Sums are of the newest seal, of the ledger and of the epochs that stand on chain. The caller is in a
transaction. Units: base units, milliseconds.
"""

from collections.abc import Mapping, Sequence

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.merkle import FORFEITED, FROZEN
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import (
    AccountSpendView,
    AuditSpendView,
    OutlookView,
    PaceView,
    SpendView,
    StepSpendView,
)
from market.domain import ledger
from market.domain.earnings import RECENT, Sealed, outlook_of, pace_of
from market.domain.jobs import JobState
from market.service.account_pay import debited_of, paid_by_job
from market.service.booking import balances_of
from market.service.coding import decode_pay, spec_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, SealRow
from market.service.show_earnings import Period
from verification.docket import Docket

MAX_ACCOUNTS = 200
NOTHING = BaseUnits(0)


async def spend_of(
    job: JobId,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    after: int,
    limit: int,
    now: UnixMillis,
    period: Period,
) -> SpendView:
    """What a job has spent; its steps beyond `after`.

    Raises:
        NotFound: no such job.
    """
    row = await find_job(job, work)
    found = await followed.load(job, row.num_messages, work)
    earnings, audits = found.earnings, _audits(row, found)
    held_of = {
        each: (earnings.frozen(each), earnings.forfeited(each)) for each in earnings.accounts()
    }
    seal = await work[SealRow].get(job, row.step) if row.step else None
    leaves = () if seal is None else decode_pay(seal.pay)
    held = {leaf.account: leaf for leaf in leaves if leaf.account in (FROZEN, FORFEITED)}
    names = ledger.escrow(job), ledger.refunded(job)
    balances = await balances_of(names, work)
    unearned, refunded = (BaseUnits(balances.get(name, 0)) for name in names)
    earned, vested = (NOTHING, NOTHING) if seal is None else (seal.earned, seal.vested)
    recent = await _recent(row, work)
    pace, cap = pace_of(recent), BaseUnits(min(row.epoch_cap, period.max_cap))
    outlook: OutlookView | None = None
    if pace is not None and row.state == JobState.RUNNING.value:
        outlook = outlook_of(
            pace, recent[-1], steps=row.steps, budget=BaseUnits(unearned + earned),
            epoch_cap=cap, epoch_millis=period.millis,
        )  # fmt: skip
    said = {leaf.account: leaf for leaf in leaves}
    names_of = sorted(held_of, key=lambda each: (-_earned(said.get(each)), each))
    accounts = await _accounts(job, names_of[:MAX_ACCOUNTS], said, held_of, work)
    return SpendView.of(
        row,
        clock=now,
        escrowed=unearned + earned + refunded,
        unearned=unearned,
        earned=earned,
        vested=vested,
        frozen=held[FROZEN].earned if FROZEN in held else NOTHING,
        forfeited=held[FORFEITED].vested if FORFEITED in held else NOTHING,
        debited=await debited_of(job, work),
        claimed=sum(each.claimed for each in accounts),
        refunded=refunded,
        epoch_cap=cap,
        audits=audits,
        num_steps=row.steps,
        pace=None if pace is None else PaceView.of(pace),
        outlook=outlook,
        num_accounts=len(names_of),
        accounts=accounts,
        steps=await _steps(job, work, after=after, limit=limit),
    )


def _earned(leaf: PayLeaf | None) -> BaseUnits:
    return NOTHING if leaf is None else leaf.earned


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


async def _recent(row: JobRow, work: UnitOfWork) -> list[Sealed]:
    seals = await work[SealRow].where(job=row.job, order="-step", limit=RECENT + 1)
    return [Sealed(seal.step, seal.earned, seal.stored_at) for seal in reversed(seals)]


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


async def _accounts(
    job: JobId,
    accounts: Sequence[Address],
    said: Mapping[Address, PayLeaf],
    held: Mapping[Address, tuple[BaseUnits, BaseUnits]],
    work: UnitOfWork,
) -> tuple[AccountSpendView, ...]:
    paid = await paid_by_job(job, accounts, work)
    return tuple(
        _account_spend(each, said.get(each), held[each], paid.get(each, (NOTHING, NOTHING)))
        for each in accounts
    )


def _account_spend(
    account: Address,
    leaf: PayLeaf | None,
    held: tuple[BaseUnits, BaseUnits],
    paid: tuple[BaseUnits, BaseUnits],
) -> AccountSpendView:
    earned, vested = (NOTHING, NOTHING) if leaf is None else (leaf.earned, leaf.vested)
    (frozen, forfeited), (debited, claimed) = held, paid
    # A job that was closed without a last seal pays what had not vested, too.
    settled = max(vested, debited)
    return AccountSpendView(
        account=account,
        earned=BaseUnits(earned + frozen + forfeited),
        waiting=BaseUnits(earned - settled),
        frozen=frozen,
        forfeited=forfeited,
        vested=BaseUnits(settled - debited),
        debited=BaseUnits(debited - claimed),
        claimed=claimed,
    )
