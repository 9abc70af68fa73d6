"""A lease whose account's bond is confirmed becomes active; a job that has all is matched.

An account has one bond in a job, for all of its leases there. The caller is inside a transaction
and holds the job's row.
"""

from dataclasses import replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.domain.matching import bundle_of
from market.service.coding import spec_of
from market.service.leases import lease_topic, live_leases, tell_of_lease
from market.service.life import happen
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow, LimitRow


async def bond_of(job: JobId, account: Address, work: UnitOfWork) -> BaseUnits:
    """What an account has at stake in a job; nothing once its work there has ended."""
    held = await work[LimitRow].get(job, account)
    return BaseUnits(0) if held is None or held.end else held.stake


async def activate(row: JobRow, account: Address, now: UnixMillis, work: UnitOfWork) -> JobRow:
    """Let an account's accepted leases begin that its bond covers. Safe to repeat."""
    bond = await bond_of(row.job, account, work)
    for lease in await work[LeaseRow].where(job=row.job, account=account, state="accepted"):
        if lease.stake <= bond:
            lease = replace(lease, state="active")
            await work[LeaseRow].put(lease)
            work.wake(lease_topic(lease.offer))
            tell_of_lease(lease, now, work)
    active = [each for each in await live_leases(row.job, work) if each.state == "active"]
    if not bundle_of(spec_of(row).message).without(len(active)).slots:
        return await happen(row, "leased", now, work)
    return row
