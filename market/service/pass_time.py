"""What happens because time passes: leases lapse or fall silent, deadlines pass.

Rows of jobs are waited for, never skipped: the messages of a busy job hold its row nearly always.
"""

from contracts.terms.digest import peer_id
from contracts.terms.history import decode_kept
from contracts.terms.ids import Address, PeerId
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from market.bodies.offers import HEARTBEAT_MILLIS
from market.domain.jobs import JobState
from market.domain.matching import bundle_of
from market.domain.offers import is_heard
from market.domain.reputation import Outcome
from market.service.coding import spec_of
from market.service.leases import (
    BLOCK_MILLIS,
    BOND_MILLIS,
    LIVE,
    SILENT,
    end,
    heard_of,
    live_leases,
)
from market.service.life import happen
from market.service.ports import UnitOfWork
from market.service.reputation import note_duty
from market.service.rows import JobRow, LeaseRow, MessageRow

NOTICE = Notice.model_fields["kind"].default

_ALIVE = (JobState.DRAFT, JobState.FUNDED, JobState.MATCHED, JobState.RUNNING)
SETTLES_MILLIS = 1_800_000
"""For how long the coordinator of a running job may go on after its deadline: no work begins any
more, and what was done vests."""


async def lapse_leases(now: UnixMillis, work: UnitOfWork) -> int:
    """End leases that were not accepted, or not bonded, in time; returns how many."""
    async with work:
        late = [
            row
            for row in await work[LeaseRow].where(state="reserved", lock=True)
            if row.accept_ends <= now
        ]
        for row in sorted(late, key=lambda row: row.account):  # whose reputations are held
            await end(row, "lapsed", now, work, blocked_until=now + BLOCK_MILLIS)
            await note_duty(row.account, Outcome.MISSED, work)
        accepted = await work[LeaseRow].where(state="accepted")
    unbonded = [row for row in accepted if row.accept_ends + BOND_MILLIS <= now]
    for row in unbonded:
        async with work:
            job = await work[JobRow].lock(row.job)  # before its leases, as all who hold both
            held = await work[LeaseRow].lock(row.lease)
            if job is None or held is None or held.state != "accepted":
                continue
            await end(held, "lapsed", now, work, blocked_until=now + BLOCK_MILLIS)
            await note_duty(held.account, Outcome.MISSED, work)
            await _tell_of_lapse(job, now, work)
    return len(late) + len(unbonded)


async def end_account(job: JobRow, account: Address, now: UnixMillis, work: UnitOfWork) -> None:
    """End the leases of an account whose work in the job has ended in the escrow."""
    rows = await work[LeaseRow].where(job=job.job, account=account, state=(*LIVE, SILENT))
    for row in rows:
        await end(row, "ended", now, work)
    if rows:
        await _tell_of_lapse(job, now, work)


async def _tell_of_lapse(job: JobRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Only a job that is short without it is told: the lapse of a spare stops nothing."""
    num_live = len(await live_leases(job.job, work))
    if bundle_of(spec_of(job).message).without(num_live).slots:
        await happen(job, "lease_lapsed", now, work)


async def release_silent(now: UnixMillis, work: UnitOfWork) -> int:
    """Let go of leases whose provider is gone from a running job; returns how many.

    Gone: its lease was not heard for the job's `lease_grace` and as long as an offer may be silent,
    and by the coordinator's newest Notice its peer is no member: it left, or never joined. Its slot
    is bought again; if only its peer is gone and the agent still answers, it has left for good,
    else it may come back.
    """
    released = 0
    async with work:
        running = await work[JobRow].where(state=JobState.RUNNING.value)
    for row in running:
        async with work:
            job = await work[JobRow].lock(row.job)
            if job is not None and job.state == JobState.RUNNING.value:
                released += await _release_gone(job, now, work)
    return released


async def _release_gone(job: JobRow, now: UnixMillis, work: UnitOfWork) -> int:
    active = await work[LeaseRow].where(job=job.job, state="active")
    heard = await heard_of((each for lease in active for each in (lease.lease, lease.offer)), work)
    patience = spec_of(job).message.rules.lease_grace + HEARTBEAT_MILLIS
    silent = [
        lease for lease in active if heard.get(lease.lease, lease.reserved_at) + patience <= now
    ]
    members = await _members(job, work) if silent else frozenset()
    gone = [
        lease
        for lease in silent
        if lease.session_key is None or peer_id(lease.session_key) not in members
    ]
    for lease in gone:
        has_left = is_heard(heard.get(lease.offer), now)
        await end(lease, "ended" if has_left else SILENT, now, work)
        if not has_left:  # an agent that answers has ended its peer in order, or will be told why
            await note_duty(lease.account, Outcome.MISSED, work)
    return len(gone)


async def _members(job: JobRow, work: UnitOfWork) -> frozenset[PeerId]:
    """Peers that have joined and not left, as the coordinator has told so far.

    Notices of the open step count: a stage without peers seals nothing before its slot is bought.
    """
    members: set[PeerId] = set()
    for row in await work[MessageRow].where(job=job.job, kind=NOTICE, order="sequence"):
        item = decode_kept(row.data)
        if isinstance(item, Signed) and isinstance(item.message, Notice):
            match item.message.what:
                case "join":
                    members.add(item.message.peer)
                case "leave":
                    members.discard(item.message.peer)
    return frozenset(members)


async def pass_deadlines(now: UnixMillis, work: UnitOfWork) -> int:
    """Fail jobs whose deadline is over; returns how many."""
    async with work:
        rows = await work[JobRow].where(state=tuple(state.value for state in _ALIVE))
    changed = 0
    for late in rows:
        if not _is_late(late, now):
            continue
        async with work:
            row = await work[JobRow].lock(late.job)
            if row is not None and _is_late(row, now):
                failed = await happen(row, "deadline_passed", now, work)
                changed += failed != row
    return changed


def _is_late(row: JobRow, now: UnixMillis) -> bool:
    patience = SETTLES_MILLIS if row.state == JobState.RUNNING else 0
    return row.state in _ALIVE and row.deadline * 1000 + patience <= now
