"""A lease whose stake is reserved becomes active; a job that has all but its spares is matched.

The caller is inside a transaction.
"""

from collections.abc import Mapping
from dataclasses import replace

from contracts.terms.encoding import Value
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import Leased
from market.domain.matching import bundle_of
from market.service.coding import spec_of, wide
from market.service.leases import lease_topic, live_leases, tell_of_lease
from market.service.life import happen
from market.service.ports import UnitOfWork
from market.service.rows import AuditBondRow, JobRow, LeaseRow


def backs(args: Mapping[str, Value], promise: LeaseRow | AuditBondRow) -> bool:
    """Whether a Reserved event holds the stake of `promise`.

    Any account may sign for any session key, and for any amount.
    """
    return (
        args["sessionKey"] == promise.session_key
        and args["account"] == promise.account
        and wide(args["amount"]) >= promise.stake
    )


async def activate(job: JobId, lease: Digest, now: UnixMillis, work: UnitOfWork) -> None:
    """Note that the stake of `lease` is reserved. Safe to repeat."""
    row = await work[JobRow].lock(job)
    held = await work[LeaseRow].lock(lease)
    if row is None or held is None:
        return
    if held.state == "accepted":
        held = replace(held, state="active", stake_state="reserved")
        await work[LeaseRow].put(held)
        await work.emit(lease_topic(held.offer), held.offer)
        tell_of_lease(held, now, work)
    elif held.stake_state == "none":
        await work[LeaseRow].put(replace(held, stake_state="reserved"))
    active = [each for each in await live_leases(job, work) if each.state == "active"]
    if not bundle_of(spec_of(row).message).without(len(active)).slots:
        await happen(row, Leased(), now, work)
