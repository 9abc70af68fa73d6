"""What audits came to in a job, from its sealed messages alone: who lied, who said so.

Every figure is read off the dockets of the fold that pays (`verification.docket`): a story is a
case in which somebody was accused, its hearings are the reports that counted, and a distance stands
beside the threshold that the job's calibration table gives for the two devices. Pure. Units:
distances in 1e-9, work in model FLOPs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.governance.rounds import Leaves, claims_of, flops_of
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import Message, Seal
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from contracts.terms.work import Findings, Verdict, findings_of
from verification.docket import Docket, begin_job
from verification.draws.cases import Case, Ruling, What
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
    farthest: Distance | None  # in parts of what is allowed; None: nothing was compared


@dataclass
class Story:
    """What was said and decided about one message that was drawn."""

    case: Case  # as it was drawn
    hearings: list[Hearing] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)

    def ruling(self, what: What) -> Ruling | None:
        """The first of a kind."""
        return next((each for each in self.rulings if each.what == what), None)


@dataclass
class Verdicts:
    """See the module. Begin with `Verdicts()`, then `note` each seal."""

    heard: dict[Digest, Story] = field(default_factory=dict)  # by subject
    work: int = 0  # sealed
    replayed: int = 0  # by reports that counted

    def note(self, record: JobRecord, under: Sequence[Message], leaves: Leaves) -> None:
        """Add what a seal came to.

        Args:
            record: After the seal.
            under: The messages that it covers.
            leaves: Of the claims among them.
        """
        docket = record.checking
        if not isinstance(docket, Docket):
            return
        for audit in docket.audits:
            case, said = audit.case, audit.said
            self.replayed += case.flops
            farthest = _farthest(docket, case, said.auditor, findings_of(leaves[said.report]))
            story = self.heard.setdefault(case.subject, Story(case))
            story.hearings.append(Hearing(said.auditor, case.round, said.verdict, farthest))
        for ruling in docket.rulings:
            if ruling.subject in self.heard:
                self.heard[ruling.subject].rulings.append(ruling)
        self.work += sum(flops_of(record.spec, claim) for claim in claims_of(under, "work"))

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


def read_verdicts(items: Iterable[Kept], domain: Domain, begin: Begin = begin_job) -> Verdicts:
    """What a job's history says, with every message checked; `begin` folds its draws.

    Raises:
        BadSignature, Conflict, Equivocation, InvalidSeal: see `contracts.governance.job.follow`.
    """
    history, found = JobHistory(domain, begin), Verdicts()
    for item in items:
        before, history = history, follow(history, item)
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            assert history.record is not None and history.newest is not None  # as it was taken
            under = before.pending_of(history.newest.names)
            found.note(history.record, under, before.leaves)
    return found


def _farthest(docket: Docket, case: Case, auditor: PeerId, found: Findings) -> Distance | None:
    """The distance that is the largest part of what it may be."""
    if not found.distances:
        return None
    limits = sorted(limits_of(docket.rules, case, auditor, docket.classes).items())
    pairs = zip(limits, found.distances, strict=True)
    distances = (Distance(name, value, limit) for (name, limit), value in pairs)
    return max(distances, key=lambda each: each.value / each.limit)
