"""What outside auditors hold reserved for a job before its list names them.

    asked -> accepted -> reserved -> released
      +---------+---> refused

Stake that is only active can be unbonded, or locked up in a sham job of one's own, before a slash.
So who could be drawn in a checked job is asked once, as soon as all slots of the job have a lease;
it signs a LeaseAccept without an offer, and `reserve_stakes` puts it on chain as it does those of
leases. Who does not answer is waited for `PATIENCE_MILLIS`. Units: base units, milliseconds.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import NO_OFFER, Address, JobId
from contracts.terms.messages import AuditSpec, JobSpec, LeaseAccept
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from market.bodies.offers import BondView
from market.domain.jobs import JobState
from market.service.accept_lease import check_terms
from market.service.ports import Chain, UnitOfWork
from market.service.rows import AuditBondRow, AuditorRow, JobRow

PATIENCE_MILLIS = 10_000
"""From the question on; a job's list is fixed without who has not reserved by then."""
BEFORE_LIST = (JobState.FUNDED.value, JobState.MATCHED.value)
"""States of a job in which its list may still be waiting for somebody."""
_UNANSWERED = ("asked", "accepted")


async def ask_bonds(
    job: JobId,
    spec: JobSpec,
    audit: AuditSpec,
    auditors: Iterable[AuditorRow],
    now: UnixMillis,
    work: UnitOfWork,
) -> None:
    """Ask auditors to reserve for a job, whose row the caller holds, what a lease of it does."""
    for each in auditors:
        await work[AuditBondRow].add(
            AuditBondRow(
                job=job,
                account=each.account,
                session_key=each.session_key,
                device_class=each.device_class,
                price=audit.price,
                stake=spec.min_stake,
                asked_at=now,
            )
        )


async def asked_of(auditor: AuditorRow, work: UnitOfWork) -> list[AuditBondRow]:
    """What an auditor has not answered yet, of jobs that still wait."""
    asked = await work[AuditBondRow].where(
        account=auditor.account, session_key=auditor.session_key, state="asked"
    )
    jobs = tuple(bond.job for bond in asked)
    rows = await work[JobRow].where(job=jobs, state=BEFORE_LIST) if jobs else []
    waiting = {row.job for row in rows}
    return [bond for bond in asked if bond.job in waiting]


async def accept_bond(account: Address, encoded: bytes, work: UnitOfWork, chain: Chain) -> BondView:
    """Store what an auditor signed. Safe to repeat; its stake is reserved on chain next.

    Raises:
        NotFound: nobody asked this account to reserve anything for this job.
        BadSignature: not by the account.
        Conflict: other terms than were asked, another LeaseAccept is stored, or it is too late.
    """
    signed = expect(decode_signed(encoded), LeaseAccept)
    accept = signed.message
    verify_wallet(signed, accept.account, chain.domain)
    async with work:
        row = await work[AuditBondRow].lock(accept.job, account)
        if row is None:
            raise NotFound("this job asks for no stake of this account", job=accept.job.hex())
        if row.accept == encoded:
            return BondView.of(row)
        wanted = {
            "account": account,
            "session_key": row.session_key,
            "offer": NO_OFFER,
            "price": row.price,
            "stake": row.stake,
            "device_class": row.device_class,
        }
        check_terms(accept, wanted)
        if row.state != "asked":
            raise Conflict(f"a reservation that is {row.state} cannot be accepted", state=row.state)
        row = replace(row, state="accepted", accept=encoded)
        await work[AuditBondRow].put(row)
        await work.emit("reserve", row.job)
    return BondView.of(row)


async def note_reserved(bond: AuditBondRow, work: UnitOfWork) -> None:
    """Note that the chain holds a bond; one that came too late is held all the same."""
    held = await work[AuditBondRow].lock(bond.job, bond.account)
    if held is not None and held.state != "released":
        await work[AuditBondRow].put(replace(held, state="reserved"))


async def note_refused(bond: AuditBondRow, work: UnitOfWork) -> None:
    """Note that a bond will not come, or that nobody waits for it any more."""
    held = await work[AuditBondRow].lock(bond.job, bond.account)
    if held is not None and held.state in _UNANSWERED:
        await work[AuditBondRow].put(replace(held, state="refused"))


def is_awaited(bond: AuditBondRow, now: UnixMillis) -> bool:
    """Whether a list waits for an answer, or for the chain."""
    return bond.state in _UNANSWERED and now - bond.asked_at < PATIENCE_MILLIS
