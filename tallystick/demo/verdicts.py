"""What audits came to in a job, from its sealed messages alone: who lied, who said so, odds.

Every figure is read off the dockets of the fold that pays (`verification.docket`): a story is a
case in which somebody was accused, its hearings are the reports that counted, and a distance stands
beside the threshold that the job's calibration table gives for the two devices. Pure. Units:
distances in 1e-9, work in model FLOPs, chances as exact rationals.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AuditReport, GradCommit, Message, Seal, Verdict
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.docket import Docket, begin_job
from verification.draws.cases import Case, Ruling, What
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


@dataclass
class Story:
    """What was said and decided about one message that was drawn."""

    case: Case  # as it was drawn
    hearings: list[Hearing] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)

    def ruling(self, what: What) -> Ruling | None:
        """The first of a kind."""
        return next((each for each in self.rulings if each.what == what), None)


@dataclass(frozen=True)
class PeerStep:
    """A sealed peer-step: its units, and how it could have been seen."""

    step: StepNumber
    units: tuple[ItemNumber, ...]
    exposed: Exposed


@dataclass
class Verdicts:
    """See the module. Begin with `Verdicts()`, then `note` each seal."""

    heard: dict[Digest, Story] = field(default_factory=dict)  # by subject
    peer_steps: dict[PeerId, list[PeerStep]] = field(default_factory=lambda: defaultdict(list))
    work: int = 0  # sealed
    replayed: int = 0  # by reports that counted
    docket: Docket | None = None  # after the newest seal

    def note(
        self,
        record: JobRecord,
        under: Sequence[Message],
        units: dict[Digest, tuple[ItemNumber, ...]],
    ) -> None:
        """Add what a seal came to.

        Args:
            record: After the seal.
            under: The messages that it holds.
            units: Of each GradCommit among them.
        """
        docket = record.checking
        if not isinstance(docket, Docket):
            return
        self.docket = docket
        reports = {each.digest(): each for each in under if isinstance(each, AuditReport)}
        for audit in docket.audits:
            case, said = audit.case, audit.said
            self.replayed += case.flops
            farthest = _farthest(docket, case, reports[said.report])
            story = self.heard.setdefault(case.subject, Story(case))
            story.hearings.append(Hearing(said.auditor, case.round, said.verdict, farthest))
        for ruling in docket.rulings:
            if ruling.subject in self.heard:
                self.heard[ruling.subject].rulings.append(ruling)
        commits = {each.digest(): each for each in under if isinstance(each, GradCommit)}
        # The fold takes them in this order.
        for name, (peer, exposed) in zip(sorted(commits), docket.exposed, strict=True):
            commit = commits[name]
            assert commit.peer == peer
            self.peer_steps[peer].append(PeerStep(StepNumber(commit.step), units[name], exposed))
            self.work += commit.num_units * record.spec.item_flops[commit.stage]

    @property
    def stories(self) -> tuple[Story, ...]:
        """Cases in which somebody was accused."""
        return tuple(each for each in self.heard.values() if each.ruling("accused"))

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
        self, peer: PeerId, is_lie: Callable[[StepNumber, ItemNumber], bool]
    ) -> tuple[PeerStep, ...]:
        """The sealed peer-steps of `peer` with a unit that its script lies about."""
        return tuple(
            each
            for each in self.peer_steps.get(peer, ())
            if any(is_lie(each.step, unit) for unit in each.units)
        )

    def odds_of(self, falsified: Sequence[Exposed]) -> Odds:
        """P(undetected) of exactly these, in a job that is checked."""
        assert self.docket is not None
        return odds(self.docket.rules.terms, falsified)


def read_verdicts(items: Iterable[Kept], domain: Domain, begin: Begin = begin_job) -> Verdicts:
    """What a job's history says, with every message checked; `begin` folds its draws.

    Raises:
        BadSignature, Conflict, Equivocation, InvalidSeal: see `contracts.governance.job.follow`.
    """
    history, found = JobHistory(domain, begin), Verdicts()
    for item in items:
        before, history = history, follow(history, item)
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            assert history.record is not None  # a seal was taken after it
            under = [signed.message for signed in before.pending.values()]
            leaves = before.leaves.items()
            units = {name: tuple(leaf.unit for leaf in each) for name, each in leaves}
            found.note(history.record, under, units)
    return found


def _farthest(docket: Docket, case: Case, report: AuditReport) -> Distance | None:
    """The distance that is the largest part of what it may be."""
    if not report.distances:
        return None
    limits = limits_of(docket.rules, case, report.auditor, docket.classes)
    pairs = (Distance(name, value, limits[name]) for name, value in report.distances)
    return max(pairs, key=lambda each: each.value / each.limit)
