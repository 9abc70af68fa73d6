"""What became of every message of a job that could be drawn: beacons, auditors, reports, rulings.

A docket holds what is open; here the whole way of a draw stays, for people who follow one to its
end. Everything is read off dockets after their seals, and nothing is decided again; outcomes are
those of `verification.tallies`.

Invariant: of a step whose beacon is here, `drawn` names just the messages with an outcome.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from contracts.governance.checking import Checking
from contracts.governance.rounds import of_kind
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import Message, StepBeacon
from contracts.terms.work import RoundClosed, Verdict
from verification.docket import Docket
from verification.draws.cases import Case, Kind, Ruling
from verification.draws.selection import Drawable
from verification.tallies import Outcome, Tally


@dataclass(frozen=True, slots=True)
class Round:
    """Who was asked about a subject in one round, the first one first, and by which beacon."""

    number: int
    beacon: Digest  # B that ordered them
    order: tuple[PeerId, ...]
    first: int  # the number of its first attempt
    drawn: StepNumber  # the step whose seal drew it


@dataclass(frozen=True, slots=True)
class Report:
    """A report that counts."""

    report: Digest
    auditor: PeerId
    attempt: int
    verdict: Verdict
    round: int
    sealed: StepNumber


@dataclass(slots=True)
class StepTrace:
    """What a step's seal holds that could be drawn, and the beacon that drew it."""

    closed: RoundClosed | None
    drawables: dict[Kind, int]
    beacon: StepBeacon | None = None  # None: it is not here yet, or nothing waits for it
    drawn: tuple[Digest, ...] = ()


@dataclass
class Traces:
    """All draws of a job. Begin with `Traces()`, then `note` each seal."""

    steps: dict[StepNumber, StepTrace] = field(default_factory=dict)
    rounds: dict[Digest, list[Round]] = field(default_factory=lambda: defaultdict(list))
    reports: dict[Digest, list[Report]] = field(default_factory=lambda: defaultdict(list))
    rulings: dict[Digest, list[Ruling]] = field(default_factory=lambda: defaultdict(list))
    _waiting: dict[StepNumber, tuple[Drawable, ...]] = field(default_factory=dict)

    def note(
        self, docket: Checking, step: StepNumber, messages: Iterable[Message], tally: Tally
    ) -> None:
        """Add what the seal of `step` came to.

        Args:
            docket: After the seal.
            step: Whose seal it is.
            messages: Under the seal.
            tally: With this seal.
        """
        said = list(messages)
        trace = StepTrace(next(iter(of_kind(said, RoundClosed)), None), {})
        self.steps[step] = trace
        if isinstance(docket, Docket):
            for beacon in of_kind(said, StepBeacon):
                self._draw(beacon, tally)
            fresh = self._waiting[step] = docket.undrawn.get(step, ())
            trace.drawables = dict(Counter(each.case.kind for each in fresh))
            self._note_audits(docket, step)

    def _draw(self, beacon: StepBeacon, tally: Tally) -> None:
        subjects = (each.case.subject for each in self._waiting.pop(beacon.of, ()))
        trace = self.steps[beacon.of]
        trace.beacon = beacon
        trace.drawn = tuple(each for each in subjects if tally.outcome_of(each) is not None)

    def _note_audits(self, docket: Docket, step: StepNumber) -> None:
        for case, _ in docket.open.values():
            self._note_round(case, step)
        for audit in docket.audits:
            case, said = audit.case, audit.said
            self.reports[case.subject].append(
                Report(said.report, said.auditor, audit.attempt, said.verdict, case.round, step)
            )
        for ruling in docket.rulings:
            self.rulings[ruling.subject].append(ruling)

    def _note_round(self, case: Case, step: StepNumber) -> None:
        known = self.rounds.get(case.subject, [])
        if case.beacon is None or not case.order or any(r.first == case.first for r in known):
            return
        # Only a round that nobody is left to audit begins and ends in one seal.
        self.rounds[case.subject].append(
            Round(case.round, case.beacon, case.order, case.first, step)
        )

    def outcomes(self, step: StepNumber, tally: Tally) -> Counter[Outcome]:
        """How many of a step's messages that were drawn came to what."""
        trace = self.steps.get(step)
        drawn = () if trace is None else trace.drawn
        found = (tally.outcome_of(each) for each in drawn)
        return Counter(each for each in found if each is not None)
