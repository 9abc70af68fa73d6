"""What checking has shown of a job so far: figures of each peer, and the way of each draw. Pure.

A docket holds what its newest seal has drawn and ruled; a tally adds up all seals: rates, audits,
convictions, odds. The audit file and the market's API read this one, so what they state is the
same. Traces keep beacons, auditors, reports and rulings of every message that could be drawn, for
people who follow one to its end. Everything is read off dockets after their seals, and nothing is
decided again.

Invariants: of what a peer has signed, each message that was drawn counts once, whatever rounds it
took: as matched, mismatched, unrepeated or missing, or it is open. Of a step whose beacon is here,
`drawn` names just the messages with an outcome. Units: rates in 1e-6.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Literal, Self, TypeAlias

from contracts.governance.checking import Checking
from contracts.governance.rounds import of_kind
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import MILLION, Message, StepBeacon
from contracts.terms.work import RoundClosed, Verdict
from verification.docket import Docket
from verification.draws.cases import Case, Kind, Ruling, What
from verification.draws.economics import Terms
from verification.draws.odds import VOLUMES, Exposed, Odds, stated_odds
from verification.draws.selection import Drawable

Outcome: TypeAlias = Literal["matched", "mismatched", "unrepeated", "missing", "open"]

_CLOSED: Mapping[What, Outcome] = {
    "settled": "matched",
    "unrepeated": "unrepeated",
    "missing": "missing",
}


@dataclass(frozen=True)
class Received:
    """Audits of what a peer has signed: peer-steps, sums and reports."""

    drawn: int
    matched: int
    mismatched: int  # it was convicted for it
    unrepeated: int
    missing: int

    @property
    def open(self) -> int:
        """Not settled yet."""
        return self.drawn - self.matched - self.mismatched - self.unrepeated - self.missing


@dataclass(frozen=True)
class Rates:
    """q of a peer's peer-steps, in 1e-6, rounded up."""

    least: int
    mean: int
    greatest: int


@dataclass
class Tally:
    """Begin with `Tally()`, then `note` each seal."""

    exposed: dict[PeerId, list[Exposed]] = field(default_factory=lambda: defaultdict(list))
    worked: dict[PeerId, tuple[StepNumber, StepNumber]] = field(default_factory=dict)
    """Of everybody who did a peer-step: the first step and the newest."""
    done: Counter[PeerId] = field(default_factory=Counter)  # reports that counted
    missed: Counter[PeerId] = field(default_factory=Counter)  # reports that came too late
    convicted: dict[PeerId, StepNumber] = field(default_factory=dict)  # by the seal of
    rulings: Counter[What] = field(default_factory=Counter)
    _outcomes: dict[Digest, tuple[PeerId, Outcome]] = field(default_factory=dict)  # by subject

    def copy(self) -> Self:
        """Another tally, which `note` changes and this one not."""
        found = type(self)(**{each.name: getattr(self, each.name).copy() for each in fields(self)})
        for peer, steps in self.exposed.items():
            found.exposed[peer] = steps.copy()
        return found

    def note(self, docket: Checking, step: StepNumber) -> None:
        """Add what the seal of `step` came to; where nobody is drawn there is nothing to add."""
        if not isinstance(docket, Docket):
            return
        for peer, each in docket.exposed:
            self.exposed[peer].append(each)
            first, _ = self.worked.get(peer, (step, step))
            self.worked[peer] = first, step
        self.done.update(audit.said.auditor for audit in docket.audits)
        for ruling in docket.rulings:
            self.rulings[ruling.what] += 1
            self._rule(ruling)

    def _rule(self, ruling: Ruling) -> None:
        fresh: tuple[PeerId, Outcome] = ruling.peer, "open"
        doer, before = self._outcomes.get(ruling.subject, fresh)
        match ruling.what:
            case "drawn":
                self._outcomes[ruling.subject] = doer, before
            case "settled" | "unrepeated" | "missing" as what:
                self._outcomes[ruling.subject] = doer, _CLOSED[what]
            case "convicted":
                self.convicted.setdefault(ruling.peer, ruling.step)
                if ruling.peer == doer:
                    self._outcomes[ruling.subject] = doer, "mismatched"
                elif before == "open":  # of who accused it
                    self._outcomes[ruling.subject] = doer, "matched"
            case "missed":
                self.missed[ruling.peer] += 1

    def outcome_of(self, subject: Digest) -> Outcome | None:
        """What became of a message that was drawn; None of one that was not, so far."""
        found = self._outcomes.get(subject)
        return None if found is None else found[1]

    def received(self) -> dict[PeerId, Received]:
        """Of everybody who signed something that was drawn."""
        counts: defaultdict[PeerId, Counter[Outcome]] = defaultdict(Counter)
        for doer, outcome in self._outcomes.values():
            counts[doer][outcome] += 1
        return {
            peer: Received(
                drawn=found.total(),
                matched=found["matched"],
                mismatched=found["mismatched"],
                unrepeated=found["unrepeated"],
                missing=found["missing"],
            )
            for peer, found in counts.items()
        }

    def odds(
        self, terms: Terms, volumes: Iterable[int] = VOLUMES
    ) -> dict[PeerId, tuple[Odds, ...]]:
        """P(undetected) of so many falsified peer-steps, and of all, of everybody who worked."""
        counts = tuple(volumes)
        return {peer: stated_odds(terms, each, counts) for peer, each in self.exposed.items()}


def rates_of(peer_steps: Sequence[Exposed]) -> Rates:
    """The rates of one peer-step or more."""
    rates = [ceil(each.rate * MILLION) for each in peer_steps]
    return Rates(min(rates), -(-sum(rates) // len(rates)), max(rates))


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
