"""Who may be slashed: what a job's seals rule becomes a conviction once its evidence is published.

A ruling `slashable` says that two owners and an auditor from outside agree. It is noted with the
seal that holds it; an auditor who agreed, and has all that it takes to run the work again, names
its bundle. A bundle is read and bound to the case before it counts (`evidence`). Every such auditor
may show one; they are tried in the order in which they came, one after the other, until one holds,
so a bad bundle costs time and bars no good one. The stake at risk is what the account has bonded in
the job: what its lease asked for or, of an auditor from outside, what the job asks of a lease.
Source: docs/protocol.md 5 and 7.
"""

from dataclasses import replace

from contracts.governance.record import JobRecord
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import peer_id
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict, Forbidden, InvariantBroken, NotFound
from contracts.terms.ids import Address, Digest, JobId, PeerId, SessionKey
from contracts.terms.moments import UnixMillis
from market.bodies.signing import evidence_digest
from market.service.coding import items
from market.service.evidence import Bundles, need_evidence, need_kept, need_unused
from market.service.ports import Chain, UnitOfWork
from market.service.rows import ConvictionRow, EvidenceRow, SlashRow
from market.service.session import check_session
from market.service.slash import convict
from verification.docket import Docket
from verification.draws.cases import CONFIRMING, Ruling


async def note_convictions(record: JobRecord, work: UnitOfWork) -> list[Digest]:
    """Store what the newest seal made slashable; returns the subjects. Safe to repeat."""
    if not isinstance(record.checking, Docket):
        return []
    found = [each for each in record.checking.rulings if each.what == "slashable"]
    for ruling in found:
        if await work[ConvictionRow].get(record.job, ruling.subject) is None:
            await work[ConvictionRow].add(_row(ruling, record))
    return [ruling.subject for ruling in found]


async def publish_evidence(
    job: JobId,
    subject: Digest,
    bundle: Digest,
    signed_by: tuple[SessionKey, bytes],
    *,
    now: UnixMillis,
    work: UnitOfWork,
    bundles: Bundles,
    chain: Chain,
) -> SlashRow:
    """An auditor names the bundle that shows it; the conviction goes its way. Safe to repeat.

    Returns:
        The slash by the bundle that is tried now, which may be another auditor's.

    Raises:
        NotFound: nothing of this subject is slashable, or the bundle is no blob of this market.
        BadSignature: not by that session key. Forbidden: the key is no auditor's of this subject.
        Malformed: it is no whole bundle, or no evidence of this case.
        Conflict: this auditor has shown another bundle, or it is of another subject.
    """
    key, signature = signed_by
    check_session(key, evidence_digest(job, subject, bundle), signature)
    auditor = peer_id(key)
    async with work:
        row = await _audited_by(auditor, job, subject, work)
        if await _is_shown(row, auditor, bundle, work):
            return await _tried_now(row, now, work)
    says = await bundles.read(bundle)
    need_evidence(says, row, auditor, chain.domain)
    async with work:
        row = await _audited_by(auditor, job, subject, work)
        if not await _is_shown(row, auditor, bundle, work):
            await need_kept(says, work)
            number = len(await work[EvidenceRow].where(job=job, subject=subject))
            await work[EvidenceRow].add(EvidenceRow(job, subject, auditor, bundle, number))
        return await _tried_now(row, now, work)


async def show_next(ended: SlashRow, now: UnixMillis, work: UnitOfWork) -> None:
    """The bundle of a slash does not hold: try the next one. The caller is in a transaction."""
    for shown in await work[EvidenceRow].where(bundle=ended.evidence):
        row = await work[ConvictionRow].lock(shown.job, shown.subject)
        if row is not None and row.evidence == ended.evidence:
            await _try_next(row, ended.convicted_at, now, work)


async def _audited_by(
    auditor: PeerId, job: JobId, subject: Digest, work: UnitOfWork
) -> ConvictionRow:
    row = await work[ConvictionRow].lock(job, subject)
    if row is None:
        raise NotFound("nothing of this subject is slashable", subject=subject.hex())
    if auditor not in items(row.auditors):
        raise Forbidden("only who audited it shows the evidence")
    return row


async def _is_shown(row: ConvictionRow, auditor: PeerId, bundle: Digest, work: UnitOfWork) -> bool:
    """Whether this auditor has named this bundle before; raises Conflict if it was another."""
    need_unused(await work[EvidenceRow].where(bundle=bundle), row)
    known = await work[EvidenceRow].get(row.job, row.subject, auditor)
    if known is not None and known.bundle != bundle:
        raise Conflict("this auditor has shown another bundle", evidence=known.bundle.hex())
    return known is not None


async def _tried_now(row: ConvictionRow, now: UnixMillis, work: UnitOfWork) -> SlashRow:
    """The slash by the bundle whose turn it is."""
    if row.evidence is None:
        row = await _try_next(row, now, now, work)
    slash = None if row.evidence is None else await work[SlashRow].get(row.evidence)
    if slash is None:
        raise Conflict("every bundle of this conviction was tried")
    return slash


async def _try_next(
    row: ConvictionRow, since: UnixMillis, now: UnixMillis, work: UnitOfWork
) -> ConvictionRow:
    """Slash by the first bundle that was not tried yet; by none, if there is none."""
    following = None
    shown = await work[EvidenceRow].where(job=row.job, subject=row.subject, order="number")
    for each in shown:
        if await work[SlashRow].get(each.bundle) is None:
            following = each.bundle
            slash = SlashRow(each.bundle, row.job, row.account, row.wanted, convicted_at=since)
            await convict(slash, now, work)
            break
    row = replace(row, evidence=following)
    await work[ConvictionRow].put(row)
    return row


def _row(ruling: Ruling, record: JobRecord) -> ConvictionRow:
    auditors = [peer for peer in ruling.by if peer != ruling.peer]
    if not auditors:
        raise InvariantBroken(f"{ruling.subject.hex()} is slashable by nobody's word")
    return ConvictionRow(
        job=record.job,
        subject=ruling.subject,
        step=int(ruling.step),
        account=_account(ruling.peer, record),
        wanted=_at_risk(ruling.peer, record),
        auditors=encode(list(auditors)),
        reports=encode([_report_of(peer, ruling, record) for peer in auditors]),
    )


def _report_of(auditor: PeerId, ruling: Ruling, record: JobRecord) -> Digest:
    """What an auditor that agrees has reported, as the seals hold it."""
    assert isinstance(record.checking, Docket)  # by `note_convictions`
    for audit in record.checking.audits:
        if audit.case.subject == ruling.subject and audit.case.round == CONFIRMING:
            for heard in (*audit.case.heard, audit.said):
                if heard.auditor == auditor:
                    return heard.report
    raise InvariantBroken(f"{ruling.subject.hex()} is slashable without a report")


def _account(peer: PeerId, record: JobRecord) -> Address:
    return record.pay_leases()[peer].account


def _at_risk(peer: PeerId, record: JobRecord) -> BaseUnits:
    if peer in record.leases:
        return record.leases[peer].stake
    return record.spec.min_stake  # as `audit_bonds` asks
