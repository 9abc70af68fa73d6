"""Which hosted coordinator a job is to name, before it is signed: allocated to its poster.

An allocation is for good once a job that names the coordinator is in escrow. Until then it costs
its poster nothing, so it keeps nobody out: it lapses after `ALLOCATED_MILLIS`, an account has at
most `UNPAID_AT_MOST`, and when none is free the oldest that nobody has paid for is given away
again. Two jobs that come to name one coordinator are both run: its wallet signs for any job.
"""

from collections.abc import Sequence
from dataclasses import replace

from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.service.ports import UnitOfWork
from market.service.rows import CoordinatorRow, HostRow

ALLOCATED_MILLIS = 600_000
UNPAID_AT_MOST = 4
HEARD_MILLIS = 60_000
"""A host that has been silent for longer comes after the others."""


async def allocate_coordinator(by: Address, now: UnixMillis, work: UnitOfWork) -> Address:
    """A coordinator for the next job of `by`, of the host that was heard last.

    Raises:
        NoMatch: no host has one that no job was paid for.
    """
    async with work:
        hosts = await work[HostRow].where(order="-heard_at")
        for row in ranked(await work[CoordinatorRow].where(job=None), hosts, by, now):
            held = await work[CoordinatorRow].lock(row.address)
            if held == row:  # else somebody was quicker
                if row.allocated_to != by or _has_lapsed(row, now):
                    taken = replace(row, allocated_to=by, allocated_at=now)
                    await work[CoordinatorRow].put(taken)
                return row.address
    raise NoMatch("no host has a coordinator left; start a host, or run your own")


def ranked(
    rows: Sequence[CoordinatorRow], hosts: Sequence[HostRow], by: Address, now: UnixMillis
) -> list[CoordinatorRow]:
    """Coordinators that nobody has paid for, in the order in which `by` is to have one.

    Args:
        rows: All such.
        hosts: All, the one that was heard last first.
        by: Has an allocation of its own again, when it has as many as it may.
        now: The market's clock.
    """
    places = {host.host: place for place, host in enumerate(hosts)}
    silent = {host.host for host in hosts if host.heard_at < now - HEARD_MILLIS}
    mine = {row.address for row in rows if row.allocated_to == by and not _has_lapsed(row, now)}
    has_all = len(mine) >= UNPAID_AT_MOST

    def order(row: CoordinatorRow) -> tuple[object, ...]:
        is_mine, at = row.address in mine, row.allocated_at or 0
        place = places.get(row.host, len(places))
        if has_all:
            return (not is_mine, at, row.address)
        return (row.host in silent, not _has_lapsed(row, now), not is_mine, place, at, row.address)

    return sorted(rows, key=order)


def num_free(rows: Sequence[CoordinatorRow], now: UnixMillis) -> int:
    """How many of these coordinators are promised to nobody."""
    return sum(row.job is None and _has_lapsed(row, now) for row in rows)


async def note_paid(coordinator: Address, job: JobId, work: UnitOfWork) -> None:
    """A job that names this coordinator is in escrow. The caller is in a transaction."""
    row = await work[CoordinatorRow].lock(coordinator)
    if row is not None and row.job is None:
        await work[CoordinatorRow].put(replace(row, job=job))


def _has_lapsed(row: CoordinatorRow, now: UnixMillis) -> bool:
    return row.allocated_at is None or row.allocated_at + ALLOCATED_MILLIS <= now
