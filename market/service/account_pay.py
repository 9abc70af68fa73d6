"""What accounts have in jobs: pay by the newest seal, limit and claims by the escrow's events.

The caller is in a transaction.
"""

from collections.abc import Collection, Sequence

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import NOTHING, BaseUnits
from contracts.terms.ids import Address, JobId
from market.domain.earnings import Claim, OwnPay
from market.service.coding import decode_arguments, decode_pay, wide
from market.service.money import CONTRACT
from market.service.ports import UnitOfWork
from market.service.rows import (
    AuditBondRow,
    BudgetRow,
    ChainEventRow,
    JobRow,
    LeaseRow,
    LimitRow,
    SealRow,
)


async def jobs_of(account: Address, work: UnitOfWork) -> list[JobId]:
    """Jobs that an account works in, may audit from outside, or has a limit or stake in."""
    leases = await work[LeaseRow].where(account=account)
    bonds = await work[AuditBondRow].where(account=account)
    limits = await work[LimitRow].where(account=account)
    jobs = {row.job for row in leases} | {row.job for row in limits}
    return sorted(jobs.union(row.job for row in bonds if row.listed is not None))


async def newest_seal(job: JobRow, work: UnitOfWork) -> SealRow | None:
    """The newest seal of a job; None before the first."""
    return await work[SealRow].get(job.job, job.step) if job.step else None


async def own_pay(
    account: Address, jobs: Sequence[JobRow], work: UnitOfWork
) -> dict[JobId, OwnPay]:
    """What an account has in each of `jobs`."""
    names = tuple(row.job for row in jobs)
    limits = await work[LimitRow].where(account=account, job=names)
    budgets = await work[BudgetRow].where(job=names)
    limit_of = {row.job: row for row in limits}
    closed = {row.job for row in budgets if row.closed_at}
    found = {}
    for row in jobs:
        seal, limit = await newest_seal(row, work), limit_of.get(row.job)
        leaf = None if seal is None else _leaf_of(account, decode_pay(seal.pay))
        found[row.job] = OwnPay(
            earned=NOTHING if leaf is None else leaf.earned,
            vested=NOTHING if leaf is None else leaf.vested,
            limit=NOTHING if limit is None else limit.limit,
            claimed=NOTHING if limit is None else limit.claimed,
            has_ended=row.job in closed or (limit is not None and limit.end > 0),
        )
    return found


async def claims_of(job: JobId, account: Address, work: UnitOfWork) -> tuple[Claim, ...]:
    """What each claim paid an account in a job, in the order of the chain."""
    rows = await work[ChainEventRow].where(
        contract=CONTRACT, job=job, event="Claimed", order="block"
    )
    found, before = [], 0
    for row in sorted(rows, key=lambda each: (each.block, each.log_index)):
        arguments = decode_arguments(row.args)
        if arguments["account"] == account:
            until = before + wide(arguments["amount"])
            found.append(Claim(BaseUnits(until), row.block, row.transaction))
            before = until
    return tuple(found)


async def claimed_in(jobs: Collection[JobId], work: UnitOfWork) -> dict[JobId, BaseUnits]:
    """What all accounts together have claimed in each of `jobs`."""
    sums = dict.fromkeys(jobs, 0)
    for row in await work[LimitRow].where(job=tuple(sums)):
        sums[row.job] += row.claimed
    return {job: BaseUnits(amount) for job, amount in sums.items()}


def _leaf_of(account: Address, leaves: Sequence[PayLeaf]) -> PayLeaf | None:
    return next((leaf for leaf in leaves if leaf.account == account), None)
