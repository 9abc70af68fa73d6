"""What checking has shown of a job's peers, and what their stakes are worth to them.

A docket knows its newest seal alone, so the tally of all seals is that of `follow_jobs`. The caller
is in a transaction. Units: base units, milliseconds, 1e-3 hours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.governance.job import JobHistory
from contracts.governance.record import JobRecord
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, JobId, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from market.domain.reputation import Reputation
from market.service.auditors import is_checked
from market.service.coding import spec_of
from market.service.follow_jobs import FollowedJobs
from market.service.ports import UnitOfWork
from market.service.reputation import reputations_of
from market.service.rows import JobRow, LeaseRow, SealRow
from verification.docket import Docket
from verification.draws.economics import Terms
from verification.tallies import Tally

_MILLIS_IN_A_THOUSANDTH_HOUR = 3600


@dataclass(frozen=True)
class PeerChecks:
    """Whose a peer is, and what it has to lose."""

    peer: PeerId
    account: Address
    stage: StageIndex | None  # of a member
    stake: BaseUnits
    stake_hours: int | None  # 1e-3: of its income in this job; None while it has none
    reputation: Reputation


@dataclass(frozen=True)
class JobChecks:
    """A job's peers beside the tally of its seals; nobody where nobody checks."""

    job: JobId
    is_checked: bool
    step: int
    terms: Terms | None = None
    peers: tuple[PeerChecks, ...] = ()
    tally: Tally = field(default_factory=Tally)


async def checks_of_job(job: JobId, work: UnitOfWork, followed: FollowedJobs) -> JobChecks:
    """Everybody who has joined, and the outside auditors of whom a seal says something.

    Raises:
        NotFound: no such job.
    """
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    if not is_checked(spec_of(row).message):
        return JobChecks(job, False, row.step)
    found = await followed.load(job, row.num_messages, work)
    record = found.history.record
    if record is None or not isinstance(record.checking, Docket):
        return JobChecks(job, True, row.step)  # not opened yet
    history, tally = found.history, found.tally.copy()  # others go on from it meanwhile
    peers = await _peers(record, history, tally, work)
    return JobChecks(job, True, row.step, record.checking.rules.terms, peers, tally)


async def _peers(
    record: JobRecord, history: JobHistory, tally: Tally, work: UnitOfWork
) -> tuple[PeerChecks, ...]:
    leases = record.pay_leases()
    said_of = {*tally.done, *tally.missed, *tally.convicted, *tally.received()}
    names = sorted({*record.leases, *said_of})
    reputations = await reputations_of((leases[peer].account for peer in names), work)
    earned = _earned(history)
    began = await _reserved_at(record.job, work)
    stored = await _stored_at(record.job, tally, work)
    checks = []
    for peer in names:
        lease, worked = leases[peer], 0
        if peer in tally.worked:
            key = record.leases[peer].session_key
            worked = _millis_worked(tally.worked[peer], began.get(key), stored)
        checks.append(
            PeerChecks(
                peer,
                lease.account,
                record.members.get(peer),
                lease.stake,
                stake_hours(lease.stake, earned.get(lease.account, 0), worked),
                reputations[lease.account],
            )
        )
    return tuple(checks)


def stake_hours(stake: BaseUnits, earned: int, worked_millis: int) -> int | None:
    """Thousandths of an hour in which as much as `stake` is earned at this pace, rounded down."""
    if earned <= 0 or worked_millis <= 0:
        return None
    return stake * worked_millis // (_MILLIS_IN_A_THOUSANDTH_HOUR * earned)


def _earned(history: JobHistory) -> Mapping[Address, int]:
    pay = history.newest.pay if history.newest is not None else ()
    return {leaf.account: leaf.earned for leaf in pay}


async def _reserved_at(job: JobId, work: UnitOfWork) -> dict[SessionKey, UnixMillis]:
    leases = await work[LeaseRow].where(job=job)
    return {each.session_key: each.reserved_at for each in leases if each.session_key is not None}


async def _stored_at(job: JobId, tally: Tally, work: UnitOfWork) -> dict[int, UnixMillis]:
    """When the seals came that anybody's work lies between, by step."""
    steps = {step for first, newest in tally.worked.values() for step in (first - 1, newest)}
    seals = await work[SealRow].where(job=job, step=tuple(sorted(steps))) if steps else []
    return {seal.step: seal.stored_at for seal in seals}


def _millis_worked(
    steps: tuple[StepNumber, StepNumber],
    reserved_at: UnixMillis | None,
    stored_at: Mapping[int, UnixMillis],
) -> int:
    """From the seal before its first step, or else from its lease, to the seal of its newest."""
    first, newest = steps
    begun, end = stored_at.get(first - 1, reserved_at), stored_at.get(newest)
    return 0 if end is None or begun is None else end - begun
