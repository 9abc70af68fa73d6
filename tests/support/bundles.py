"""Evidence bundles of a made-up job: everything is signed, nothing was computed.

A job of three stages with two owners in each; bytes stand for tensors as names stand for them in
`history`, so a bundle takes milliseconds. `papers_of` says what an auditor has signed about it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts.terms.digest import digest
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    LeaseAccept,
    StepBeacon,
    StepClose,
    Verdict,
)
from contracts.terms.signatures import Signed, expect
from tests.support.checked_swarm import begin_checked
from tests.support.dockets import CLASS, UNTIED, audit_spec, distances_of
from tests.support.history import (
    JobMaker,
    Member,
    make_digest,
    make_members,
    make_session,
    outside_auditors,
)
from verification.auditing.bundle import (
    Papers,
    Shown,
    ShownCommit,
    ShownSum,
    ShownWork,
    Sort,
    check_papers,
)
from verification.auditing.bundle_file import write_bundle
from verification.verdicts import PROJECTIONS

NAMES = ("ann", "bob", "cem", "dan", "eve", "fay")
"""Of stages 0, 1, 2, 0, 1, 2."""
STAGES, STEP = 3, StepNumber(1)
LAST = STAGES - 1
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
    commits: Mapping[str, ShownCommit]
    average: Signed[AverageSet]
    chunks: tuple[Signed[AveragedChunk], ...]
    closes: tuple[Signed[StepClose], ...]

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

    def report(
        self, by: str, subject: GradCommit | AveragedChunk | AuditReport, found: Verdict,
        **changed: Any,
    ) -> Signed[AuditReport]:  # fmt: skip
        """What a member, or the auditor from outside, says of a message when it has found this."""
        distances = distances_of(subject.stage, self.job.spec, found)
        if isinstance(subject, AveragedChunk) or _is_of_sum(subject):
            distances = ()
        elif isinstance(subject, AuditReport):
            agrees = subject.verdict if found == "match" else _other(subject.verdict)
            distances = distances_of(subject.stage, self.job.spec, agrees)
            distances = tuple(sorted((*distances, (PROJECTIONS, 0))))
        session = make_session(OUT) if by == OUT else self.member(by).session
        values: dict[str, Any] = {
            "job": subject.job, "step": subject.step, "stage": subject.stage,
            "auditor": session.peer, "subject": subject.digest(), "attempt": 0,
            "distances": distances, "projections": (1, -1), "verdict": found,
        }  # fmt: skip
        return session.sign(AuditReport(**(values | changed)))


def _is_of_sum(subject: GradCommit | AuditReport) -> bool:
    return isinstance(subject, AuditReport) and not subject.distances


def _other(verdict: Verdict) -> Verdict:
    return "mismatch" if verdict == "match" else "match"


def make_story() -> Story:
    """The first step of the job."""
    job = make_job()
    close, commits = job.close(), dict[str, ShownCommit]()
    for name, member in zip(NAMES, job.members, strict=True):
        commit, leaves = job.commit(member, close)
        commits[name] = ShownCommit(member.session.sign(commit), leaves)
    closes = (job.session.sign(close),)
    average = job.average(close, [shown.commit for shown in commits.values()])
    chunks = job.chunks(average, [shown.commit for shown in commits.values()])
    return Story(
        job,
        commits,
        job.session.sign(average),
        tuple(expect(signed, AveragedChunk) for signed in chunks),
        closes,
    )


def work_papers(
    story: Story, doer: str = "cem", auditor: str = "fay", *, verdict: Verdict = "mismatch"
) -> Papers:
    """A peer-step that was found false; by default of the last stage, which needs rows' names."""
    work = story.commits[doer]
    first = [name for name in NAMES if story.member(name).stage == 0]
    names = [name for name in first if story.commits[name].units & work.units]
    rows = tuple(story.commits[name] for name in names) if work.commit.stage == LAST else ()
    claim = ShownWork(replace(work, closes=story.closes), rows, story.beacon(), None)
    named = {doer, auditor, *(names if rows else ())}
    return _papers(story, claim, story.report(auditor, work.commit, verdict), named)


def repeat_papers(story: Story) -> Papers:
    """A report on bob's work that somebody from outside repeated; eve found no difference."""
    return _repeated(story, work_papers(story, "bob", "eve", verdict="match"))


def _repeated(story: Story, papers: Papers) -> Papers:
    claim = replace(papers.claim, repeated=papers.report)
    report = story.report(OUT, papers.report.message, "mismatch")
    return replace(papers, claim=claim, report=report)


def sum_papers(story: Story, *, verdict: Verdict = "mismatch") -> Papers:
    """A mean of the first stage that was found false."""
    chunk = next(each for each in story.chunks if each.message.stage == 0)
    named = {shown.commit.digest(): shown.signed for shown in story.commits.values()}
    commits = tuple(named[each.grad_commit] for each in story.average.message.members)
    claim = ShownSum(chunk, story.average, commits)
    doer = next(n for n in NAMES if story.member(n).session.peer == chunk.message.peer)
    auditor = "dan" if doer == "ann" else "ann"
    return _papers(story, claim, story.report(auditor, chunk.message, verdict), set(NAMES))


def sum_repeat_papers(story: Story) -> Papers:
    """A report on a sum that somebody from outside repeated."""
    return _repeated(story, sum_papers(story, verdict="match"))


def _papers(
    story: Story, claim: ShownWork | ShownSum, report: Signed[AuditReport], named: set[str]
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
    spec, named = story.job.spec, list[tuple[object, ...]]()
    for unit in range(spec.batch.units_per_step):
        named.append(("rows", STEP, unit))
        named += [(kind, STEP, unit, stage) for kind in ("y", "dx") for stage in range(1, STAGES)]
    for member in story.job.members:
        parts = spec.chunking.of_stage(member.stage)
        named += [("part", member.session.peer, STEP, chunk) for _, chunk in parts]
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
