"""Staked accounts that can be asked to audit from outside, and the list that a job fixes of them.

An account registers one session key by its wallet's signature and is heard like an offer. When a
checked job has all of its leases, the list of those heard is fixed at one confirmed block; the job
is handed to a host with it, and its JobOpening has to name it. It never changes afterwards: who
comes later is not drawn in this job, who leaves misses reports. Source: PROTOCOL section 2, message
0; what its list of all stake is here is said in `contracts.terms.auditors`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.errors import (
    BadSignature,
    Conflict,
    InsufficientStake,
    NotFound,
    Refused,
)
from contracts.terms.ids import MAX_PEERS, ZERO_DIGEST, Address, JobId, SessionKey
from contracts.terms.messages import JobOpening, JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.api.schemas import auditor_digest, auditor_subject, heartbeat_digest
from market.domain.jobs import JobState
from market.domain.offers import check_moment
from market.service.coding import spec_of
from market.service.leases import LIVE
from market.service.ports import Chain, StakeNow, UnitOfWork
from market.service.rows import (
    AuditorListRow,
    AuditorRow,
    HeartbeatRow,
    JobRow,
    LeaseRow,
    ListedAuditorRow,
)
from market.service.session import check_session
from verification.thresholds import shipped_calibration

HEARD_MILLIS = 60_000
"""Who was not heard for so long is not listed."""
_ASKED = tuple(
    state.value
    for state in (JobState.MATCHED, JobState.RUNNING, JobState.FINISHED, JobState.CLOSED)
)
"""In which a listed auditor follows a job: to its last seal, and until its evidence is shown."""


@dataclass(frozen=True)
class Registration:
    """What a wallet signed: `session_key` signs the reports of `account`."""

    account: Address
    session_key: SessionKey
    device_class: str
    at: UnixMillis
    signature: bytes


def is_checked(spec: JobSpec) -> bool:
    """Whether anybody is drawn in a job."""
    return spec.rules.audit is not None


async def register_auditor(
    said: Registration, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> StakeNow:
    """Note an account's audit key; returns its stake. Safe to repeat; a later key replaces one.

    Raises:
        BadSignature: not by the account's wallet.
        Expired: a clock that is off, or older than what was said before.
        InsufficientStake: the account has no active stake.
        Conflict: the key is another account's.
        Refused: no report from its device could count.
    """
    name = auditor_digest(said.account, said.session_key, said.device_class, said.at)
    if recover(name, said.signature) != said.account:
        raise BadSignature(f"0x{said.account.hex()} did not sign this audit key")
    if not shipped_calibration().admits(said.device_class):
        raise Refused(
            f"the calibration table does not hold {said.device_class} against two other devices: "
            "its replays decide nothing",
            device_class=said.device_class,
        )
    stake = (await chain.account(said.account)).stake
    if not stake.active:
        raise InsufficientStake("an auditor has stake", wanted=1, free=stake.free)
    async with work:
        known = await work[AuditorRow].lock(said.account)
        if known is not None and known.signature == said.signature:
            return stake
        check_moment(said.at, now=now, previous=known.signed_at if known else None)
        row = AuditorRow(said.account, said.session_key, said.device_class, said.at, said.signature)
        await work[AuditorRow].put(row)
        heard = await work[HeartbeatRow].lock(auditor_subject(said.account))
        last = heard.at if heard else UnixMillis(0)
        await work[HeartbeatRow].put(HeartbeatRow(auditor_subject(said.account), last, now))
    return stake


async def hear_auditor(
    account: Address, at: UnixMillis, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> list[JobId]:
    """Note that an auditor is alive; returns the jobs that may draw its key.

    Raises:
        NotFound: it is not registered.
        BadSignature: not by its audit key.
        Expired: replayed, or a clock that is off.
    """
    subject = auditor_subject(account)
    async with work:
        row = await work[AuditorRow].get(account)
        if row is None:
            raise NotFound("no such auditor", account=account.hex())
        check_session(row.session_key, heartbeat_digest(subject, at), signature)
        known = await work[HeartbeatRow].lock(subject)
        check_moment(at, now=now, previous=known.at if known else None)
        await work[HeartbeatRow].put(HeartbeatRow(subject, at, now))
        listed = await work[ListedAuditorRow].where(account=account)
        jobs = tuple(each.job for each in listed if each.session_key == row.session_key)
        rows = await work[JobRow].where(job=jobs, state=_ASKED) if jobs else []
        return [each.job for each in rows]


async def fix_auditors(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Fix the list of every checked job that has its leases; returns the jobs. Safe to repeat.

    Raises:
        ChainForgot: the node knows the block's state no more; a later round takes a newer one.
    """
    async with work:
        matched = await work[JobRow].where(state=JobState.MATCHED.value)
        due = [
            row
            for row in matched
            if is_checked(spec_of(row).message) and not await work[AuditorListRow].get(row.job)
        ]
        heard = await _heard(now, work) if due else {}
    if not due:
        return []
    block, stakes = await chain.stakes(sorted(heard))
    for row in due:
        async with work:
            listed = await _outside(row, heard, stakes, work)
            await _store(row.job, block.number, listed, work)
    return [row.job for row in due]


async def list_of_job(job: JobId, work: UnitOfWork) -> tuple[int, AuditorList]:
    """The block of a job's list and the list, inside the caller's transaction.

    Raises:
        NotFound: no such job, or its list is not fixed (yet).
    """
    row = await work[AuditorListRow].get(job)
    if row is None:
        raise NotFound("this job has no list of outside auditors", job=job.hex())
    entries = await work[ListedAuditorRow].where(job=job, order="account")
    return row.block, AuditorList(
        auditors=tuple(
            OutsideAuditor(
                account=each.account,
                stake=each.stake,
                session_key=each.session_key,
                device_class=each.device_class,
            )
            for each in entries
        )
    )


async def check_opening(row: JobRow, opening: JobOpening, work: UnitOfWork) -> None:
    """Check that an opening names the list that was fixed for its job.

    Raises:
        Conflict: it does not; data says what would fit.
    """
    fixed = await work[AuditorListRow].get(row.job)
    if not is_checked(spec_of(row).message):
        if opening.outside_auditors != ZERO_DIGEST:
            raise Conflict("nobody audits this job", would_fit=ZERO_DIGEST.hex())
        return
    if fixed is None:
        raise Conflict("the job's list of outside auditors is not fixed yet")
    if (opening.outside_auditors, opening.opening_block) != (fixed.digest, fixed.block):
        raise Conflict(
            "the opening names another list of outside auditors, or another block",
            would_fit=fixed.digest.hex(),
            block=fixed.block,
        )


async def _heard(now: UnixMillis, work: UnitOfWork) -> Mapping[Address, AuditorRow]:
    rows = await work[AuditorRow].where()
    subjects = {auditor_subject(row.account): row for row in rows}
    beats = await work[HeartbeatRow].where(subject=tuple(subjects)) if subjects else []
    heard = [subjects[beat.subject] for beat in beats if now - beat.heard_at <= HEARD_MILLIS]
    return {row.account: row for row in heard}


async def _outside(
    row: JobRow,
    heard: Mapping[Address, AuditorRow],
    stakes: Mapping[Address, StakeNow],
    work: UnitOfWork,
) -> AuditorList:
    """Who is outside of a job; if there are too many, those with the most stake."""
    leases = await work[LeaseRow].where(job=row.job, state=LIVE)
    inside = {row.poster, row.coordinator, *(lease.account for lease in leases)}
    staked = [each for each in heard if each not in inside and stakes[each].active]
    most = sorted(staked, key=lambda each: (-stakes[each].active, each))[:MAX_PEERS]
    return AuditorList(
        auditors=tuple(
            OutsideAuditor(
                account=each,
                stake=stakes[each].active,
                session_key=heard[each].session_key,
                device_class=heard[each].device_class,
            )
            for each in sorted(most)
        )
    )


async def _store(job: JobId, block: int, listed: AuditorList, work: UnitOfWork) -> None:
    held = await work[JobRow].lock(job)
    if held is None or await work[AuditorListRow].get(job):
        return  # somebody was faster
    await work[AuditorListRow].add(AuditorListRow(job, block, listed.digest()))
    await _store_entries(job, listed.auditors, work)
    await work.emit("host", job)


async def _store_entries(job: JobId, auditors: Sequence[OutsideAuditor], work: UnitOfWork) -> None:
    for each in auditors:
        await work[ListedAuditorRow].add(
            ListedAuditorRow(job, each.account, each.session_key, each.device_class, each.stake)
        )
