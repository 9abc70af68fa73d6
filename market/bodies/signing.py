"""What a client signs that is no message of a job, as digests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.ids import Address, Digest, JobId, SessionKey
from contracts.terms.moments import UnixMillis

if TYPE_CHECKING:
    from market.bodies.jobs import StepReport
    from market.bodies.operations import JobAction


def heartbeat_digest(subject: Digest, at: UnixMillis) -> Digest:
    """What a session key signs to say that the offer or lease `subject` is alive at `at`."""
    return digest("heartbeat", subject + at.to_bytes(8, "big"))


def withdrawal_digest(offer: Digest) -> Digest:
    """What an agent's session key signs to withdraw its offer."""
    return digest("withdrawal", offer)


def hosting_digest(host: str, coordinator: Address) -> Digest:
    """What a coordinator's wallet signs (`Wallet.sign_digest`) to be run by `host`."""
    return digest("hosting", coordinator + host.encode())


def auditor_digest(
    account: Address, session_key: SessionKey, device_class: str, at: UnixMillis
) -> Digest:
    """What a wallet signs (`Wallet.sign_digest`) to audit from outside under a session key."""
    return digest("audit key", encode([account, session_key, device_class, at]))


def auditor_subject(account: Address) -> Digest:
    """What heartbeats of an auditor are about."""
    return digest("auditor", account)


def evidence_digest(job: JobId, subject: Digest, bundle: Digest) -> Digest:
    """What an auditor's session key signs to say which bundle shows that `subject` is wrong."""
    return digest("evidence", job + subject + bundle)


def contest_digest(evidence: Digest, bundle: Digest) -> Digest:
    """What a convicted account's wallet signs (`Wallet.sign_digest`) to contest a slash."""
    return digest("contest", evidence + bundle)


def wish_digest(job: JobId, action: "JobAction", at: UnixMillis) -> Digest:
    """What a poster's wallet signs (`Wallet.sign_digest`) to pause, resume or cancel its job."""
    return digest("wish", encode([job, action, at]))


def reports_digest(job: JobId, reports: Sequence["StepReport"]) -> Digest:
    """What a coordinator's session key signs with a batch of step reports."""
    return digest("reports", job + encode([report.model_dump() for report in reports]))


def checkpoint_digest(job: JobId, stage: int, step: int, blob: Digest, failure: str = "") -> Digest:
    """What a member's session key signs to say which index lists its stage's weights.

    With `failure` it says that it could not upload them, and why.
    """
    return digest("checkpoint 2", encode([job, stage, step, blob, failure]))
