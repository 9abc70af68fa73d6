"""Who may be slashed: what a job's seals rule becomes a conviction once its evidence is published.

A ruling `slashable` says that two owners and an auditor from outside agree. It is noted with the
seal that holds it; an auditor who agreed, and has all that it takes to run the work again, names
the bundle: the first that comes counts. The stake at risk is what was reserved for the job, by the
lease or, of an auditor from outside, before it was listed: as much as a lease has to. The
challenger is the first of the auditors that is not the convict. Restitution is at most the value
of the convicted work, rounded down. Source: PROTOCOL sections 5 and 7.
"""

from contracts.governance.record import JobRecord
from contracts.terms.amounts import BaseUnits, Flops, pay_for
from contracts.terms.digest import peer_id
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict, Forbidden, InvariantBroken, NotFound
from contracts.terms.history import decode_kept
from contracts.terms.ids import Address, Digest, JobId, PeerId, SessionKey
from contracts.terms.messages import AuditReport, AveragedChunk, GradCommit, Message
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from market.api.schemas import evidence_digest
from market.domain.slashing import Conviction
from market.service.coding import items
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import ConvictionRow, MessageRow, SlashRow
from market.service.session import check_session
from market.service.slash import convict
from verification.cases import Ruling
from verification.docket import Docket

AUDITED = tuple(
    str(cls.model_fields["kind"].default) for cls in (GradCommit, AveragedChunk, AuditReport)
)
"""Kinds of what can be convicted."""


async def note_convictions(record: JobRecord, work: UnitOfWork) -> list[Digest]:
    """Store what the newest seal made slashable; returns the subjects. Safe to repeat."""
    if not isinstance(record.checking, Docket):
        return []
    found = [each for each in record.checking.rulings if each.what == "slashable"]
    for ruling in found:
        if await work[ConvictionRow].get(record.job, ruling.subject) is None:
            await work[ConvictionRow].add(await _row(ruling, record, work))
    return [ruling.subject for ruling in found]


async def publish_evidence(
    job: JobId,
    subject: Digest,
    bundle: Digest,
    signed_by: tuple[SessionKey, bytes],
    *,
    now: UnixMillis,
    work: UnitOfWork,
    blobs: BlobStore,
) -> SlashRow:
    """An auditor names the bundle that shows it; the conviction goes its way. Safe to repeat.

    Raises:
        NotFound: nothing of this subject is slashable, or the bundle is no blob of this market.
        BadSignature: not by that session key. Forbidden: the key is no auditor's of this subject.
        Conflict: another bundle is known, or this one is of another subject.
    """
    key, signature = signed_by
    check_session(key, evidence_digest(job, subject, bundle), signature)
    async with work:
        row = await work[ConvictionRow].lock(job, subject)
        if row is None:
            raise NotFound("nothing of this subject is slashable", subject=subject.hex())
        if peer_id(key) not in items(row.auditors):
            raise Forbidden("only who audited it shows the evidence")
        if row.evidence not in (None, bundle):
            raise Conflict("another bundle shows it already", evidence=row.evidence.hex())
        others = await work[ConvictionRow].where(evidence=bundle)
        if any((other.job, other.subject) != (job, subject) for other in others):
            raise Conflict("this bundle shows something else", evidence=bundle.hex())
        slash = await convict(_conviction(row, bundle), now, work, blobs)
        await work[ConvictionRow].put(_with_evidence(row, bundle))
    return slash


def _conviction(row: ConvictionRow, bundle: Digest) -> Conviction:
    return Conviction(bundle, row.job, row.account, row.wanted, row.owed, row.challenger)


def _with_evidence(row: ConvictionRow, bundle: Digest) -> ConvictionRow:
    return ConvictionRow(**{**vars(row), "evidence": bundle})


async def _row(ruling: Ruling, record: JobRecord, work: UnitOfWork) -> ConvictionRow:
    auditors = [peer for peer in ruling.by if peer != ruling.peer]
    if not auditors:
        raise InvariantBroken(f"{ruling.subject.hex()} is slashable by nobody's word")
    return ConvictionRow(
        job=record.job,
        subject=ruling.subject,
        step=int(ruling.step),
        account=_account(ruling.peer, record),
        wanted=_at_risk(ruling.peer, record),
        owed=await _value(ruling, record, work),
        challenger=_account(auditors[0], record),
        auditors=encode(list(auditors)),
    )


def _account(peer: PeerId, record: JobRecord) -> Address:
    return record.pay_leases()[peer].account


def _at_risk(peer: PeerId, record: JobRecord) -> BaseUnits:
    if peer in record.leases:
        return record.leases[peer].stake
    return record.spec.min_stake  # as `audit_bonds` asks


async def _value(ruling: Ruling, record: JobRecord, work: UnitOfWork) -> BaseUnits:
    """What the job paid or owes the convict for it; nothing for a sum, which is not paid.

    Work and its audits are the same number of flops; each is paid at its lease's price.
    """
    message = await _message(ruling.subject, record.job, work)
    if isinstance(message, AuditReport):
        message = await _message(message.subject, record.job, work)
    if not isinstance(message, GradCommit):
        return BaseUnits(0)
    return pay_for(_flops(message, record), record.pay_leases()[ruling.peer].price)


def _flops(commit: GradCommit, record: JobRecord) -> Flops:
    return Flops(commit.num_units * record.spec.unit_flops[commit.stage])


async def _message(name: Digest, job: JobId, work: UnitOfWork) -> Message | None:
    """The message of a job with this digest; looked for only when somebody was convicted."""
    for row in await work[MessageRow].where(job=job, kind=AUDITED):
        item = decode_kept(row.data)
        if isinstance(item, Signed) and item.message.digest() == name:
            return item.message
    return None
