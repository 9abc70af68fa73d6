"""What audits came to in a job, from its sealed messages alone: who lied, who said so, odds.

Every figure follows from the fold that pays (`verification.docket`): a story is a case in which
somebody was accused, its hearings are the reports that counted, and a distance stands beside the
threshold that the job's calibration table gives for the two devices. Pure. Units: distances in
1e-9, work in model FLOPs, chances as exact rationals.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.errors import Malformed
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit, Seal, Verdict
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.docket import Docket, begin_job
from verification.draws.cases import Case, Kind, Ruling
from verification.draws.odds import Exposed, Odds, odds
from verification.verdicts import limits_of


@dataclass(frozen=True)
class Distance:
    """How far a claim lay from a replay, and how far it may."""

    name: str
    value: int
    limit: int


@dataclass(frozen=True)
class Hearing:
    """A report that counted."""

    auditor: PeerId
    round: int
    verdict: Verdict
    farthest: Distance | None  # in parts of what is allowed; None: of a sum, or nothing was there


@dataclass(frozen=True)
class Story:
    """A case in which somebody was accused."""

    subject: Digest
    kind: Kind
    doer: PeerId  # of what was audited
    stage: StageIndex
    step: StepNumber  # of the work
    hearings: tuple[Hearing, ...] = ()
    rulings: tuple[Ruling, ...] = ()

    def ruling(self, what: str) -> Ruling | None:
        """The first of a kind."""
        return next((each for each in self.rulings if each.what == what), None)


@dataclass(frozen=True)
class PeerStep:
    """A sealed peer-step: its units, and how it could have been seen."""

    step: StepNumber
    units: tuple[UnitId, ...]
    exposed: Exposed


@dataclass
class Verdicts:
    """See the module."""

    stories: tuple[Story, ...] = ()
    peer_steps: Mapping[PeerId, list[PeerStep]] = field(default_factory=dict)
    work: int = 0  # sealed
    replayed: int = 0  # by reports that counted
    record: JobRecord | None = None  # after the newest seal

    @property
    def convicted(self) -> dict[PeerId, StepNumber]:
        """Everybody convicted, and in which seal."""
        return {
            ruling.peer: ruling.step
            for story in self.stories
            for ruling in story.rulings
            if ruling.what == "convicted"
        }

    def falsified(
        self, peer: PeerId, is_lie: Callable[[StepNumber, UnitId], bool]
    ) -> tuple[PeerStep, ...]:
        """The sealed peer-steps of `peer` with a unit that its script lies about."""
        return tuple(
            each
            for each in self.peer_steps.get(peer, ())
            if any(is_lie(each.step, unit) for unit in each.units)
        )

    def odds_of(self, falsified: Sequence[Exposed]) -> Odds:
        """P(undetected) of exactly these; raises Malformed if nobody checks this job."""
        return odds(self.docket.rules.terms, falsified)

    @property
    def docket(self) -> Docket:
        """After the newest seal; raises Malformed if nobody checks this job."""
        docket = self.record.checking if self.record else None
        if not isinstance(docket, Docket):
            raise Malformed("nobody checks this job")
        return docket


def read_verdicts(items: Iterable[Kept], domain: Domain, begin: Begin = begin_job) -> Verdicts:
    """What a job's history says, with every message checked; `begin` folds its draws.

    Raises:
        BadSignature, Conflict, Equivocation, InvalidSeal: see `contracts.governance.job.follow`.
    """
    reading = _Reading(JobHistory(domain, begin))
    for item in items:
        reading.take(item)
    return reading.verdicts()


class _Reading:
    """A history as it is read."""

    def __init__(self, history: JobHistory) -> None:
        self._history = history
        self._stories: dict[Digest, Story] = {}
        self._hearings: defaultdict[Digest, list[Hearing]] = defaultdict(list)
        self._peer_steps: defaultdict[PeerId, list[PeerStep]] = defaultdict(list)
        self._units: dict[Digest, tuple[UnitId, ...]] = {}
        self._work = self._replayed = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._reports: list[AuditReport] = []
        self._commits: list[GradCommit] = []

    def take(self, item: Kept) -> None:
        """One more item."""
        before = self._history.record
        self._history = follow(self._history, item)
        match item:
            case Leaves():
                self._units[item.grad_commit] = tuple(leaf.unit for leaf in item.leaves)
            case Signed(message=AuditReport() as report):
                self._reports.append(report)
            case Signed(message=GradCommit() as commit):
                self._commits.append(commit)
            case Signed(message=Seal()):
                self._take_seal(before)
                self._begin_step()

    def _take_seal(self, before: JobRecord | None) -> None:
        after = self._history.record
        if before is None or after is None or not isinstance(before.checking, Docket):
            return
        assert isinstance(after.checking, Docket)  # as it was
        heard: set[Digest] = set()
        for report in sorted(self._reports, key=lambda each: (each.attempt, each.digest())):
            if report.subject not in heard and before.checking.wants(report):
                heard.add(report.subject)  # the next round has its own coin, so a later seal
                self._hear(before.checking, report)
        for ruling in after.checking.rulings:
            self._rule(before.checking, ruling)
        self._take_work(after)

    def _hear(self, docket: Docket, report: AuditReport) -> None:
        case, _ = docket.open[report.subject]
        self._replayed += case.flops
        heard = Hearing(report.auditor, case.round, report.verdict, _farthest(docket, case, report))
        self._hearings[report.subject].append(heard)

    def _rule(self, docket: Docket, ruling: Ruling) -> None:
        story = self._stories.get(ruling.subject)
        if story is None and ruling.what == "accused":
            case, _ = docket.open[ruling.subject]
            story = Story(ruling.subject, case.kind, case.doer, case.stage, case.step)
        if story is not None:
            rulings = (*story.rulings, ruling)
            self._stories[ruling.subject] = Story(
                story.subject, story.kind, story.doer, story.stage, story.step, rulings=rulings
            )

    def _take_work(self, after: JobRecord) -> None:
        assert isinstance(after.checking, Docket)  # of a checked job
        by_digest = sorted(self._commits, key=lambda each: each.digest())
        for commit, (peer, exposed) in zip(by_digest, after.checking.exposed, strict=True):
            assert commit.peer == peer  # the fold takes them in this order
            units = self._units[commit.digest()]
            self._peer_steps[peer].append(PeerStep(StepNumber(commit.step), units, exposed))
            self._work += commit.num_units * after.spec.unit_flops[commit.stage]

    def verdicts(self) -> Verdicts:
        """All of it."""
        stories = tuple(
            Story(
                each.subject,
                each.kind,
                each.doer,
                each.stage,
                each.step,
                tuple(self._hearings[each.subject]),
                each.rulings,
            )
            for each in self._stories.values()
        )
        return Verdicts(stories, self._peer_steps, self._work, self._replayed, self._history.record)


def _farthest(docket: Docket, case: Case, report: AuditReport) -> Distance | None:
    """The distance that is the largest part of what it may be."""
    if not report.distances:
        return None
    limits = limits_of(docket.rules, case, report.auditor, docket.classes)
    pairs = (Distance(name, value, limits[name]) for name, value in report.distances)
    return max(pairs, key=lambda each: each.value / each.limit)
