"""Evidence bundles of a made-up job: everything is signed, nothing was computed.

A job of three stages with two owners in each; bytes stand for tensors as names stand for them in
`history`, so a bundle takes milliseconds. `papers_of` says what an auditor has signed about it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts.terms.digest import digest
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LeaseAccept, StepBeacon
from contracts.terms.signatures import Signed
from contracts.terms.work import (
    Leaf,
    RoundClosed,
    Sort,
    Verdict,
    WorkClaim,
    findings_of,
    leaf_names,
)
from tests.support.dockets import CLASS, UNTIED, audit_spec, begin_checked, distances_of
from tests.support.history import (
    JobMaker,
    Member,
    make_digest,
    make_members,
    make_session,
    outside_auditors,
    report_claim,
)
from verification.auditing.bundle import (
    Papers,
    Shown,
    ShownClaim,
    ShownSum,
    ShownWork,
    check_papers,
)
from verification.auditing.bundle_file import write_bundle

NAMES = ("ann", "bob", "cem", "dan", "eve", "fay")
"""Of stages 0, 1, 2, 0, 1, 2."""
STAGES, STEP = 3, StepNumber(1)
OUT = "out"


def make_job() -> JobMaker:
    """A checked job with an auditor from outside."""
    return JobMaker(
        members=make_members(NAMES, stages=STAGES),
        spec_changes={"audit": audit_spec(), "model": UNTIED.model_copy(update={"num_layers": 3})},
        device_class=CLASS,
        outside=outside_auditors((OUT,), device_class=CLASS),
        begin=begin_checked,
    )


@dataclass(frozen=True)
class Story:
    """One step of the job, as everybody has signed it."""

    job: JobMaker
    claims: Mapping[str, ShownClaim]
    closed: Signed[RoundClosed]
    buckets: tuple[Signed[WorkClaim], ...]

    def member(self, name: str) -> Member:
        """Somebody of the job."""
        return self.job.members[NAMES.index(name)]

    def lease(self, name: str) -> Signed[LeaseAccept]:
        """What somebody's wallet has signed."""
        member = self.member(name)
        return member.wallet.sign(self.job.lease(member), self.job.domain)

    def beacon(self, **changed: Any) -> Signed[StepBeacon]:
        """The beacon of the step."""
        values: dict[str, Any] = {
            "job": self.job.spec.job(), "step": StepNumber(2), "of": STEP, "batch": ZERO_DIGEST,
            "block": 7, "beacon": make_digest("beacon"),
        }  # fmt: skip
        return self.job.session.sign(StepBeacon(**(values | changed)))

    def report(self, by: str, subject: ShownClaim, found: Verdict, **changed: Any) -> ShownClaim:
        """What a member, or the auditor from outside, says of a claim when it has found this."""
        claim, spec = subject.claim, self.job.spec
        distances: tuple[int, ...] = ()
        if claim.what == "work":
            distances = distances_of(claim.group, spec, found)
        elif claim.what == "report" and findings_of(subject.leaves).distances:
            said = findings_of(subject.leaves).verdict
            agrees = said if found == "match" else _other(said)
            distances = distances_of(claim.group, spec, agrees, projections=0)
        session = make_session(OUT) if by == OUT else self.member(by).session
        about: dict[str, Any] = {
            "round": claim.round, "group": claim.group, "subject": claim.digest(), "attempt": 0,
        }  # fmt: skip
        distances = changed.pop("distances", distances)
        said_of, leaf = report_claim(
            claim.job, session.peer, found, distances, (1, -1), **(about | changed)
        )
        return shown_claim(session.sign(said_of), leaf)


def shown_claim(signed: Signed[WorkClaim], *leaves: Leaf) -> ShownClaim:
    """A claim with its leaves, as a bundle shows it."""
    return ShownClaim(signed, leaves)


def _other(verdict: Verdict) -> Verdict:
    return "mismatch" if verdict == "match" else "match"


def make_story() -> Story:
    """The first step of the job."""
    job = make_job()
    claims = dict[str, ShownClaim]()
    for name, member in zip(NAMES, job.members, strict=True):
        claim, leaves = job.claim(member)
        claims[name] = shown_claim(member.session.sign(claim), *leaves)
    merged = [shown.claim for shown in claims.values()]
    closed = job.closed(merged)
    return Story(job, claims, job.session.sign(closed), tuple(job.bucket_claims(closed, merged)))


def work_papers(
    story: Story, doer: str = "cem", auditor: str = "fay", *, verdict: Verdict = "mismatch"
) -> Papers:
    """Work that was found false; by default of the last stage, which reads rows as labels."""
    work = story.claims[doer]
    claim = ShownWork(work, story.closed, story.beacon(), None)
    return _papers(story, claim, story.report(auditor, work, verdict), {doer, auditor})


def repeat_papers(story: Story) -> Papers:
    """A report on bob's work that somebody from outside repeated; eve found no difference."""
    return _repeated(story, work_papers(story, "bob", "eve", verdict="match"))


def _repeated(story: Story, papers: Papers) -> Papers:
    claim = replace(papers.claim, repeated=papers.report)
    report = story.report(OUT, papers.report, "mismatch")
    return replace(papers, claim=claim, report=report)


def sum_papers(story: Story, *, verdict: Verdict = "mismatch") -> Papers:
    """A mean of the first stage that was found false."""
    bucket = next(each for each in story.buckets if each.message.group == 0)
    named = {shown.claim.digest(): shown.signed for shown in story.claims.values()}
    claims = tuple(named[name] for name, _ in story.closed.message.claims)
    claim = ShownSum(bucket, story.closed, claims, None)
    doer = next(n for n in NAMES if story.member(n).session.peer == bucket.message.peer)
    auditor = "dan" if doer == "ann" else "ann"
    report = story.report(auditor, shown_claim(bucket), verdict)
    return _papers(story, claim, report, set(NAMES))


def sum_repeat_papers(story: Story) -> Papers:
    """A report on a sum that somebody from outside repeated."""
    return _repeated(story, sum_papers(story, verdict="match"))


def _papers(
    story: Story, claim: ShownWork | ShownSum, report: ShownClaim, named: set[str]
) -> Papers:
    job = story.job
    assert job.outside is not None
    return Papers(
        job.domain,
        job.poster.sign(job.spec, job.domain),
        job.coordinator.sign(job.opening, job.domain),
        job.outside,
        tuple(story.lease(name) for name in NAMES if name in named),
        claim,
        report,
    )


# ------------------------------------------------------------------------------------------- bytes


def made_digest(_sort: Sort, data: bytes) -> Digest:
    """`DigestOf` of this job: bytes spell the names that `history.make_digest` digests."""
    return digest("made", data)


def bytes_of(story: Story) -> dict[Digest, bytes]:
    """What stands for each tensor, part and rows of the step."""
    spec, named = story.job.spec, set[tuple[object, ...]]()
    for item in map(ItemNumber, range(spec.batch.units_per_step)):
        for stage in map(StageIndex, range(STAGES)):
            named |= {(name,) for name in leaf_names(stage, STAGES, item).all}
    for member in story.job.members:
        outputs = spec.chunking.of_stage(member.stage)
        named |= {("part", member.session.peer, STEP, chunk) for _, chunk in outputs}
    spelled = [repr(names).encode() for names in named]
    return {digest("made", data): data for data in spelled}


def shown(papers: Papers) -> Shown:
    """What papers of this job show."""
    return check_papers(papers, begin_checked)


def write(papers: Papers, story: Story, path: Path, **changed: bytes) -> Path:
    """A whole bundle; `changed` has other bytes for some digests, by their hex."""
    folder = path.with_suffix(".made")
    folder.mkdir(parents=True, exist_ok=True)
    found, blobs = bytes_of(story), dict[Digest, Path]()
    for name in shown(papers).wanted:
        blobs[name] = folder / name.hex()
        blobs[name].write_bytes(changed.get(name.hex(), found[name]))
    weights = folder / "weights"
    weights.write_bytes(b"weights")
    is_sum = isinstance(papers.claim, ShownSum)
    write_bundle(path, papers.encoded(), None if is_sum else weights, blobs)
    return path


KINDS: dict[str, Callable[[Story], Papers]] = {
    "work": work_papers,
    "report": repeat_papers,
    "sum": sum_papers,
    "report on a sum": sum_repeat_papers,
}
