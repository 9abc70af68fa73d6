"""What checking has shown of each peer of a job so far: rates, audits, convictions, odds. Pure.

A docket holds what its newest seal has drawn and ruled; a tally adds up all seals. The audit file
and the market's API read this one, so what they state is the same.

Invariant: of what a peer has signed, each message that was drawn counts once, whatever rounds it
took: as matched, mismatched, unrepeated or missing, or it is open. Units: rates in 1e-6.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Literal, Self, TypeAlias

from contracts.governance.checking import Checking
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import MILLION
from verification.docket import Docket
from verification.draws.cases import Ruling, What
from verification.draws.economics import Terms
from verification.draws.odds import VOLUMES, Exposed, Odds, stated_odds

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
