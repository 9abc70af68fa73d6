"""Accounts that can be asked to audit from outside, and the list that a job fixes of them.

An account registers one session key by its wallet's signature and is heard like an offer. Free
money can be taken out before a slash. So those heard are asked once to bond in a checked job, as
soon as all of its slots have a lease:

    asked -> accepted -> bonded
      +---------+---> refused

A Bond is sent as those of leases are (`orders`). Who does not answer is waited for
`PATIENCE_MILLIS`, and a bond that was sent as long as that of a lease. When the job is matched and
nobody is waited for, the list of those whose bond a confirmed block holds is fixed; the job is
handed to a host with it, and its JobOpening has to name it. It never changes afterwards: who comes
later is not drawn in this job, who leaves misses reports. Source: docs/protocol.md 2, message 0;
what its list of all stake is here is said in `contracts.terms.auditors`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from contracts.governance.escrow import Channel
from contracts.terms.amounts import BaseUnits
from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.errors import BadSignature, Conflict, InsufficientStake, NotFound, Refused
from contracts.terms.escrow_messages import Bond
from contracts.terms.ids import MAX_PEERS, ZERO_DIGEST, Address, JobId
from contracts.terms.messages import JobOpening, JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect, recover
from market.bodies.offers import AuditorJobs, BondAsked, BondView, RegisterAuditor
from market.bodies.signing import auditor_digest, auditor_subject, heartbeat_digest
from market.domain.jobs import JobState
from market.domain.matching import bundle_of
from market.domain.offers import check_moment
from market.service.accept_lease import check_bond
from market.service.activate import bond_of
from market.service.coding import spec_of
from market.service.find_job import need
from market.service.leases import BOND_MILLIS, live_leases
from market.service.life import FOR_HOSTS
from market.service.orders import store_order
from market.service.ports import Chain, UnitOfWork
from market.service.rows import (
    AuditBondRow,
    AuditorListRow,
    AuditorRow,
    FreeMoneyRow,
    HeartbeatRow,
    JobRow,
    OrderRow,
)
from market.service.session import check_session, need_free_key
from verification.distances.thresholds import shipped_calibration

PATIENCE_MILLIS = 10_000
"""From the question on; a job's list is fixed without who has sent no bond by then."""
BEFORE_LIST = (JobState.FUNDED.value, JobState.MATCHED.value)
"""States of a job in which its list may still be waiting for somebody."""
_UNANSWERED = ("asked", "accepted")
HEARD_MILLIS = 60_000
"""Who was not heard for so long is not listed."""
_ASKED = tuple(
    state.value
    for state in (JobState.MATCHED, JobState.RUNNING, JobState.FINISHED, JobState.CLOSED)
)
"""In which a listed auditor follows a job: to its last seal, and until its evidence is shown."""


def is_checked(spec: JobSpec) -> bool:
    """Whether anybody is drawn in a job."""
    return spec.rules.audit is not None


async def register_auditor(
    said: RegisterAuditor, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> BaseUnits:
    """Note an account's audit key; returns its free balance. Safe to repeat; a later key replaces
    one.

    Raises:
        BadSignature: not by the account's wallet.
        Expired: a clock that is off, or older than what was said before.
        InsufficientStake: the account has no free balance in the escrow.
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
    free = (await chain.account(said.account)).free
    if not free:
        raise InsufficientStake(
            "an auditor has tokens in the escrow to bond: deposit first", wanted="1", free="0"
        )
    async with work:
        known = await work[AuditorRow].lock(said.account)
        if known is not None and known.signature == said.signature:
            return free
        check_moment(said.at, now=now, previous=known.signed_at if known else None)
        await need_free_key(said.session_key, said.account, work)
        row = AuditorRow(said.account, said.session_key, said.device_class, said.at, said.signature)
        await work[AuditorRow].put(row)
        heard = await work[HeartbeatRow].lock(auditor_subject(said.account))
        last = heard.at if heard else UnixMillis(0)
        await work[HeartbeatRow].put(HeartbeatRow(auditor_subject(said.account), last, now))
    return free


async def hear_auditor(
    account: Address, at: UnixMillis, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> AuditorJobs:
    """Note that an auditor is alive; returns what is asked of it.

    Raises:
        NotFound: it is not registered.
        BadSignature: not by its audit key.
        Expired: replayed, or a clock that is off.
    """
    subject = auditor_subject(account)
    async with work:
        row = need(await work[AuditorRow].get(account), "auditor", account=account)
        check_session(row.session_key, heartbeat_digest(subject, at), signature)
        known = await work[HeartbeatRow].lock(subject)
        check_moment(at, now=now, previous=known.at if known else None)
        await work[HeartbeatRow].put(HeartbeatRow(subject, at, now))
        bonds = await work[AuditBondRow].where(account=account, session_key=row.session_key)
        jobs = tuple(bond.job for bond in bonds if bond.listed is not None)
        rows = await work[JobRow].where(job=jobs, state=_ASKED)
        asked = tuple(BondAsked.of(each) for each in await _waited_for(bonds, work))
        return AuditorJobs(jobs=tuple(each.job for each in rows), asked=asked)


async def fix_auditors(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[JobId]:
    """Ask for the bonds behind checked jobs' lists, and fix those that wait for nobody.

    Safe to repeat. Returns the jobs whose lists it fixed.

    Raises:
        ChainForgot: the node knows the block's state no more; a later round takes a newer one.
    """
    async with work:
        rows = await work[JobRow].where(state=BEFORE_LIST)
        due = [row for row in rows if await _is_due(row, work)]
        heard = await _heard(now, work) if due else {}
    if not due:
        return []
    fixed = []
    for row in due:
        async with work:
            bonds = await work[AuditBondRow].where(job=row.job, state="bonded")
        block, bonded = await chain.channels([(bond.job, bond.account) for bond in bonds])
        async with work:
            held = await work[JobRow].lock(row.job)
            if held is None or not await _is_due(held, work):
                continue  # somebody was faster
            now_bonded = await work[AuditBondRow].where(job=row.job, state="bonded")
            if any((bond.job, bond.account) not in bonded for bond in now_bonded):
                continue  # its bond came while the chain was read; the next round reads it
            if await _may_be_fixed(held, heard, now, work):
                await _fix(held, block.number, heard, bonded, work)
                fixed.append(row.job)
    return fixed


async def list_of_job(job: JobId, work: UnitOfWork) -> tuple[int, AuditorList]:
    """The block of a job's list and the list, inside the caller's transaction.

    Raises:
        NotFound: no such job, or its list is not fixed (yet).
    """
    row = await work[AuditorListRow].get(job)
    if row is None:
        raise NotFound("this job has no list of outside auditors", job=job.hex())
    return row.block, _list_of(await work[AuditBondRow].where(job=job, order="account"))


def _list_of(bonds: Iterable[AuditBondRow]) -> AuditorList:
    """The list that bonds in the order of their accounts make."""
    return AuditorList(
        auditors=tuple(
            OutsideAuditor(
                account=bond.account,
                stake=bond.listed,
                session_key=bond.session_key,
                device_class=bond.device_class,
            )
            for bond in bonds
            if bond.listed is not None
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
    beats = await work[HeartbeatRow].where(subject=tuple(subjects))
    heard = [subjects[beat.subject] for beat in beats if now - beat.heard_at <= HEARD_MILLIS]
    return {row.account: row for row in heard}


async def _is_due(row: JobRow, work: UnitOfWork) -> bool:
    """Whether a job has nobody asked yet and its slots are taken, or a list that is not fixed."""
    spec = spec_of(row).message
    if not is_checked(spec) or await work[AuditorListRow].get(row.job):
        return False
    if row.state != JobState.FUNDED.value:
        return row.state in BEFORE_LIST
    # Asked while the leases are being bonded too, the auditors hold up nobody.
    num_live = len(await live_leases(row.job, work))
    is_taken = not bundle_of(spec).without(num_live).slots
    return is_taken and not await work[AuditBondRow].where(job=row.job, limit=1)


async def _may_be_fixed(
    row: JobRow, heard: Mapping[Address, AuditorRow], now: UnixMillis, work: UnitOfWork
) -> bool:
    """Ask who was not asked; whether the job is matched and waits for no answer."""
    if not await work[AuditBondRow].where(job=row.job, limit=1):
        await _ask(row, heard, now, work)
    bonds = await work[AuditBondRow].where(job=row.job)
    is_waiting = any(
        [await _is_awaited(bond, now, work) for bond in bonds if bond.account in heard]
    )
    return row.state == JobState.MATCHED.value and not is_waiting


async def _ask(
    row: JobRow, heard: Mapping[Address, AuditorRow], now: UnixMillis, work: UnitOfWork
) -> None:
    """Ask who is outside and can bond what a lease does; if there are too many, those with most."""
    spec, inside = spec_of(row).message, await _inside(row, work)
    rows = await work[FreeMoneyRow].where(account=tuple(heard))
    free = {each.account: each.amount for each in rows}
    able = [each for each in free if each not in inside and 0 < free[each] >= spec.min_stake]
    most = sorted(able, key=lambda each: (-free[each], each))[:MAX_PEERS]
    assert spec.rules.audit is not None  # `_is_due`
    for each in most:
        bond = AuditBondRow(
            job=row.job,
            account=each,
            session_key=heard[each].session_key,
            device_class=heard[each].device_class,
            price=spec.rules.audit.price,
            stake=spec.min_stake,
            asked_at=now,
        )
        await work[AuditBondRow].add(bond)


async def _inside(row: JobRow, work: UnitOfWork) -> set[Address]:
    leases = await live_leases(row.job, work)
    return {row.poster, row.coordinator, *(lease.account for lease in leases)}


async def _fix(
    row: JobRow,
    block: int,
    heard: Mapping[Address, AuditorRow],
    channels: Mapping[tuple[JobId, Address], Channel],
    work: UnitOfWork,
) -> None:
    """Store the list of those who have bonded, and let go of all others."""
    inside = await _inside(row, work)
    bonded = {
        account: channel.stake
        for (_, account), channel in channels.items()
        if channel.stake and not channel.end
    }
    bonds = []
    for bond in await work[AuditBondRow].where(job=row.job, order="account"):
        if bond.state in _UNANSWERED:
            bonds.append(replace(bond, state="refused"))
        elif (
            bonded.get(bond.account, -1) >= bond.stake
            and _holds_key(bond, heard)
            and bond.account not in inside
        ):
            bonds.append(replace(bond, listed=BaseUnits(bonded[bond.account])))
    await work[AuditBondRow].put_all(bonds)
    await work[AuditorListRow].add(AuditorListRow(row.job, block, _list_of(bonds).digest()))
    work.wake(FOR_HOSTS)


def _holds_key(bond: AuditBondRow, heard: Mapping[Address, AuditorRow]) -> bool:
    """Whether an auditor was heard lately, and under the key that its bond is of."""
    known = heard.get(bond.account)
    return known is not None and known.session_key == bond.session_key


# ------------------------------------------------------------------------------------- their bonds


async def _waited_for(bonds: Iterable[AuditBondRow], work: UnitOfWork) -> list[AuditBondRow]:
    """Those that were asked for and not answered yet, of jobs that still wait."""
    asked = [bond for bond in bonds if bond.state == "asked"]
    jobs = tuple(bond.job for bond in asked)
    rows = await work[JobRow].where(job=jobs, state=BEFORE_LIST)
    waiting = {row.job for row in rows}
    return [bond for bond in asked if bond.job in waiting]


async def accept_bond(
    account: Address, encoded: bytes, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> BondView:
    """Keep the Bond that an auditor signed; it is sent next. Safe to repeat.

    Raises:
        NotFound: nobody asked this account to bond anything in this job.
        BadSignature: not by the account. Expired: its time is over.
        Conflict: it is too low, or it is too late.
    """
    bond, times = expect(decode_signed(encoded), Bond).message, await chain.times()
    async with work:
        await work[JobRow].lock(bond.job)
        row = await work[AuditBondRow].lock(bond.job, account)
        if row is None:
            raise NotFound("this job asks for no stake of this account", job=bond.job.hex())
        signed = check_bond(encoded, row, chain.domain)
        if await work[OrderRow].get(bond.digest()) is not None:
            return BondView.of(row)
        if row.state != "asked":
            raise Conflict(f"a bond that is {row.state} cannot be accepted", state=row.state)
        await store_order(signed, times, now, work)
        row = replace(row, state="accepted")
        await work[AuditBondRow].put(row)
    return BondView.of(row)


async def note_bonded(job: JobId, account: Address, work: UnitOfWork) -> None:
    """Note that the chain holds a bond, if it is high enough; the caller holds the job's row."""
    held = await work[AuditBondRow].lock(job, account)
    if held is not None and held.stake <= await bond_of(job, account, work):
        await work[AuditBondRow].put(replace(held, state="bonded"))


async def _is_awaited(bond: AuditBondRow, now: UnixMillis, work: UnitOfWork) -> bool:
    """Whether a list waits for an answer, or for the chain: for what was sent as long as leases do.

    Else providers who have bonded before they won would begin before anybody outside could.
    """
    waited = now - bond.asked_at
    if bond.state not in _UNANSWERED or waited >= BOND_MILLIS:
        return False
    if waited < PATIENCE_MILLIS:
        return True
    orders = await work[OrderRow].where(job=bond.job, account=bond.account, kind="bond")
    return any(each.transaction is not None for each in orders)
