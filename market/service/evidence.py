"""What counts as evidence: a bundle of the declared format that is bound to the case it names.

A bundle (`verification.auditing.bundle`) is read before it is accepted: every signature and root in
it holds, its report's verdict follows from its distances, and it has all the bytes that its claim
names. What it shows is then compared with what the market knows of the case. Whether its tensors
show what the report says takes a replay, so that is for whoever judges. Source: docs/protocol.md 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.terms.errors import Conflict, Malformed
from contracts.terms.ids import Digest, JobId, PeerId
from contracts.terms.messages import Verdict
from contracts.terms.typed_data import Domain
from market.service.coding import items
from market.service.ports import UnitOfWork
from market.service.rows import ConvictionRow, EvidenceRow, MessageRow

MAX_NAMED = 4096
"""Signed messages of one bundle that are looked for in a job's history."""


@dataclass(frozen=True)
class BundleSays:
    """What follows from the papers of a bundle, all of which hold."""

    domain: Domain
    job: JobId
    subject: Digest  # the message that was audited
    work: Digest  # the GradCommit or AveragedChunk behind it; the subject itself but for a report
    auditor: PeerId  # who signed the bundle's report
    report: Digest
    verdict: Verdict
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


def need_evidence(
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


async def need_kept(says: BundleSays, work: UnitOfWork) -> None:
    """Refuse a bundle with a signed message that the job's history does not have.

    Raises:
        Malformed: some message in it was never sealed in this job.
    """
    _need(len(says.kept) <= MAX_NAMED, f"it names more than {MAX_NAMED} messages")
    named = set(says.kept)
    known = await work[MessageRow].where(job=says.job, digest=tuple(named)) if named else []
    _need(len(known) == len(named), "it holds a message that is not in the job's history")


def need_unused(others: Sequence[EvidenceRow], conviction: ConvictionRow) -> None:
    """Refuse a bundle that shows something else already; raises Conflict."""
    if any((each.job, each.subject) != (conviction.job, conviction.subject) for each in others):
        raise Conflict("this bundle shows something else")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise Malformed(f"no evidence of this case: {message}")
