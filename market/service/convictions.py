"""Who may be slashed: what a job's seals rule becomes a conviction once its evidence is published.

A ruling `slashable` says that two owners and an auditor from outside agree. It is noted with the
seal that holds it; an auditor who agreed, and has all that it takes to run the work again, names
its bundle (`verification.auditing.bundle`). That is read before it counts: every signature and root
in it holds, its report's verdict follows from its distances, it has all the bytes that its claim
names, and what it shows is what the market knows of the case. Whether its tensors show what the
report says takes a replay, so that is for whoever judges. Every such auditor may show one; they are
tried in the order in which they came, one after the other, until one holds, so a bad bundle costs
time and bars no good one. The stake at risk is what the account has bonded in the job: what its
lease asked for or, of an auditor from outside, what the job asks of a lease.
Source: docs/protocol.md 5 and 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from contracts.governance.record import JobRecord
from contracts.terms.digest import peer_id
from contracts.terms.encoding import encode
from contracts.terms.errors import Conflict, Forbidden, InvariantBroken, Malformed, NotFound
from contracts.terms.ids import Digest, JobId, PeerId, SessionKey
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain
from market.bodies.signing import evidence_digest
from market.service.coding import items
from market.service.named_blobs import need_blobs
from market.service.ports import BlobStore, Chain, UnitOfWork
from market.service.rows import ConvictionRow, EvidenceRow, MessageRow, SlashRow
from market.service.session import check_session
from market.service.slash import convict
from verification.docket import Docket
from verification.draws.cases import CONFIRMING, Ruling

MAX_NAMED = 2**14
"""Signed messages of one bundle that are looked for in a job's history."""


@dataclass(frozen=True)
class BundleSays:
    """What follows from the papers of a bundle, all of which hold."""

    domain: Domain
    job: JobId
    subject: Digest  # the message that was audited
    auditor: PeerId  # who signed the bundle's report
    report: Digest
    kept: tuple[Digest, ...] = ()  # `kept_digest` of every signed message that a job's history has


class Bundles(Protocol):
    """Bundles among the market's blobs."""

    async def read(self, name: Digest) -> BundleSays:
        """What a bundle says.

        Raises:
            NotFound: no such blob.
            Malformed: it is no whole bundle; data: `path`.
            Refused: verdicts of its job follow from a calibration that we do not have.
        """


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
    blobs: BlobStore,
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
    _need_evidence(says, row, auditor, chain.domain)
    async with work:
        row = await _audited_by(auditor, job, subject, work)
        if not await _is_shown(row, auditor, bundle, work):
            await _need_kept(says, work)
            await need_blobs((bundle,), work, blobs)
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
    _need_unused(await work[EvidenceRow].where(bundle=bundle), row)
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
    lease = record.leases.get(ruling.peer)
    return ConvictionRow(
        job=record.job,
        subject=ruling.subject,
        step=int(ruling.step),
        account=record.pay_leases()[ruling.peer].account,
        wanted=record.spec.min_stake if lease is None else lease.stake,  # as `auditors` asks
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


# ------------------------------------------------------------------------- what counts as evidence


def _need_evidence(
    says: BundleSays, conviction: ConvictionRow, auditor: PeerId, domain: Domain
) -> None:
    """Refuse a bundle that is not this auditor's own word on what was convicted.

    Raises:
        Malformed: it is of another chain, job or subject; or its report is not the one that a seal
            holds.
    """
    _need((says.domain, says.job) == (domain, conviction.job), "it is of another job or chain")
    _need(says.subject == conviction.subject, "it is about another message")
    _need(says.auditor == auditor, "its report is by another auditor")
    place = items(conviction.auditors).index(auditor)
    _need(says.report == items(conviction.reports)[place], "no seal holds its report")


async def _need_kept(says: BundleSays, work: UnitOfWork) -> None:
    """Refuse a bundle with a signed message that the job's history does not have.

    Raises:
        Malformed: some message in it was never sealed in this job.
    """
    _need(len(says.kept) <= MAX_NAMED, f"it names more than {MAX_NAMED} messages")
    named = set(says.kept)
    known = await work[MessageRow].where(job=says.job, digest=tuple(named))
    _need(len(known) == len(named), "it holds a message that is not in the job's history")


def _need_unused(others: Sequence[EvidenceRow], conviction: ConvictionRow) -> None:
    """Refuse a bundle that shows something else already; raises Conflict."""
    if any((each.job, each.subject) != (conviction.job, conviction.subject) for each in others):
        raise Conflict("this bundle shows something else")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise Malformed(f"no evidence of this case: {message}")
