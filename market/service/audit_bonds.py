"""What outside auditors put at stake in a job before its list names them.

    asked -> accepted -> bonded
      +---------+---> refused

Free money can be taken out before a slash. So who could be drawn in a checked job is asked once, as
soon as all slots of the job have a lease; it signs a Bond, which is sent as those of leases are
(`orders`). Who does not answer is waited for `PATIENCE_MILLIS`, and a bond that was sent as long as
that of a lease. Units: base units, milliseconds.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.terms.errors import Conflict, NotFound
from contracts.terms.escrow_messages import Bond
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import AuditSpec, JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect
from market.bodies.offers import BondView
from market.domain.jobs import JobState
from market.service.accept_lease import check_bond
from market.service.activate import bond_of
from market.service.leases import BOND_MILLIS
from market.service.orders import store_order
from market.service.ports import Chain, UnitOfWork
from market.service.rows import AuditBondRow, AuditorRow, JobRow, OrderRow

PATIENCE_MILLIS = 10_000
"""From the question on; a job's list is fixed without who has sent no bond by then."""
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
    """Ask auditors to bond in a job, whose row the caller holds, what a lease of it does."""
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


async def note_refused(bond: AuditBondRow, work: UnitOfWork) -> None:
    """Note that a bond will not come, or that nobody waits for it any more."""
    held = await work[AuditBondRow].lock(bond.job, bond.account)
    if held is not None and held.state in _UNANSWERED:
        await work[AuditBondRow].put(replace(held, state="refused"))


async def is_awaited(bond: AuditBondRow, now: UnixMillis, work: UnitOfWork) -> bool:
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
