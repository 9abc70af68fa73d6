"""How a rerun reads: a table for people, a body for programs.

It says each distance beside what is allowed, the verdict here beside the auditor's, and what nobody
can learn from a bundle alone. Distances are integers in 1e-9, as in reports.
"""

from collections.abc import Iterator

from contracts.terms.ids import DigestField, JobIdField, PeerId, PeerIdField
from contracts.terms.items import count
from contracts.terms.messages import DISTANCE_SCALE
from market.bodies.base import Body
from verification.auditing.bundle import Shown, ShownSum
from verification.auditing.outcome import Outcome


class RerunDistance(Body):
    """One measure, 1e-9."""

    here: int
    allowed: int
    auditor: int


class Rerun(Body):
    """What came of running an audit again."""

    confirmed: bool
    verdict: str
    said: str
    job: JobIdField
    kind: str
    claim: str
    step: int
    stage: int
    subject: DigestField
    signed_by: PeerIdField
    worked: PeerIdField
    auditor: PeerIdField
    device_class: str
    distances: dict[str, RerunDistance]
    on_trust: tuple[str, ...]


def claim_of(shown: Shown) -> str:
    """What the audit is of, in words."""
    claim, case = shown.papers.claim, shown.case
    if isinstance(claim, ShownSum):
        bucket = claim.bucket.message.bucket
        what = f"mean of bucket {bucket} of stage {case.stage} in step {case.step}"
    else:
        work = claim.work.claim
        what = f"work of stage {case.stage} in step {case.step}, {count(work.items)} units"
        what += f", claim {work.seq + 1}" if work.seq else ""
    return f"report on {what}" if case.kind == "report" else what


def lines(outcome: Outcome) -> Iterator[str]:
    """The outcome for people; the last line says it all."""
    shown, report = outcome.shown, outcome.shown.papers.report.claim
    yield f"job         {shown.record.job.hex()}"
    yield f"claim       {claim_of(shown)}"
    yield f"subject     {shown.case.subject.hex()}"
    yield f"signed by   {_party(shown, shown.case.doer)}"
    if shown.case.worker != shown.case.doer:
        yield f"worked      {_party(shown, shown.case.worker)}"
    yield f"auditor     {_party(shown, report.peer)}: {outcome.said}"
    yield f"here        {outcome.device_class}: {outcome.verdict}"
    yield from _table(outcome)
    for index, what in enumerate(outcome.trusted):
        yield f"{'' if index else 'on trust':<12}{what}"
    job = shown.record.job.hex()
    yield f"            tallystick audit export {job} --to FILE; tallystick audit verify FILE"
    yield summary(outcome)


def _party(shown: Shown, peer: PeerId) -> str:
    lease = shown.record.pay_leases()[peer]
    return f"0x{lease.account.hex()} peer {peer.hex()[:16]} ({lease.device_class})"


def _table(outcome: Outcome) -> Iterator[str]:
    if not outcome.distances:
        return
    width = max(len(each.name) for each in outcome.distances)
    yield f"{'distance':<{width}}{'here':>12}{'allowed':>12}{'auditor':>12}"
    for each in outcome.distances:
        numbers = (each.here, each.allowed, each.said)
        spelled = "".join(f"{value / DISTANCE_SCALE:>12.3e}" for value in numbers)
        yield f"{each.name:<{width}}{spelled}{'  too far' if each.is_far else ''}"


def summary(outcome: Outcome) -> str:
    """One line."""
    if outcome.is_confirmed:
        return f"confirmed: {outcome.verdict} here, as the auditor says"
    return f"not confirmed: {outcome.verdict} here, the auditor says {outcome.said}"


def body(outcome: Outcome) -> Rerun:
    """The outcome for programs."""
    shown, case = outcome.shown, outcome.shown.case
    return Rerun.of(
        outcome,
        confirmed=outcome.is_confirmed,
        job=shown.record.job,
        kind=case.kind,
        claim=claim_of(shown),
        step=case.step,
        stage=case.stage,
        subject=case.subject,
        signed_by=case.doer,
        worked=case.worker,
        auditor=shown.papers.report.claim.peer,
        distances={
            each.name: RerunDistance.of(each, auditor=each.said) for each in outcome.distances
        },
        on_trust=outcome.trusted,
    )
