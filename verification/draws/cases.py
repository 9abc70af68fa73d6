"""One draw from its beacon to its end: who is heard, who is believed, who is convicted. Pure.

    round 0  the first auditor      match: settled.  mismatch: the pay of who did it is frozen
    round 1  a third owner          mismatch: convicted.  match: now the first auditor is accused
    round 2  yet another owner      whoever is alone against two is convicted
    round 3  an outside auditor     agrees with the conviction: stake may be slashed

Every round is drawn by the beacon of the step whose seal holds the report before it. An auditor
that reports nothing in time is passed over; when nobody is left, nothing is proved: the draw
settles as unrepeated. Data that are missing for two auditors, and did not come through the
coordinator, cost unvested pay and nothing else.

An attempt has a number that no other round of its subject has, a reopened one included: a report
that came too late in one round says nothing in another, whose beacon seeds other projections.

Invariants: nobody is convicted by fewer than two owners that are neither his nor each other's; who
convicts never gains by it; a case ends. Source: docs/protocol.md 4 and 5.
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from contracts.terms.amounts import Flops
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.work import Verdict

Kind: TypeAlias = Literal["work", "bucket", "report"]
What: TypeAlias = Literal[
    "drawn",
    "settled",
    "unrepeated",
    "missed",
    "accused",
    "contradicted",
    "convicted",
    "missing",
    "slashable",
    "unconfirmed",
]

FIRST, SECOND, THIRD, CONFIRMING = range(4)
INSIDE, OUTSIDE = 3, 3
"""Auditors of one round, at most: first of the stage, then of all that is staked."""
_NEVER = StepNumber(0)


@dataclass(frozen=True)
class Ruling:
    """Something that a seal decided about a subject, for reports, reputation and slashing."""

    what: What
    subject: Digest
    step: StepNumber  # of the seal that decided it
    peer: PeerId  # whom it is about
    by: tuple[PeerId, ...] = ()  # who was heard; of what is slashable, who agrees


@dataclass(frozen=True)
class Heard:
    """A report that counts."""

    auditor: PeerId
    verdict: Verdict
    report: Digest


@dataclass(frozen=True)
class Case:
    """A subject that was drawn and is not settled."""

    subject: Digest  # the claim that is audited
    kind: Kind
    doer: PeerId  # who signed it
    stage: StageIndex
    step: StepNumber  # the round in which the work or bucket was made
    held_since: StepNumber  # of the seal that holds the subject, whose vesting waits
    flops: Flops  # of one replay
    work: Digest  # the claim of work or of a bucket; the subject itself but for a report
    worker: PeerId  # who signed that
    said: Verdict | None = None  # by a report that is repeated
    seeded_by: Digest | None = (
        None  # the beacon that seeded its projections; of a bucket it has none
    )
    round: int = FIRST
    awaits: StepNumber | None = None  # the step whose beacon draws this round
    beacon: Digest | None = None  # B that drew it
    order: tuple[PeerId, ...] = ()
    first: int = 0  # the number of this round's first attempt
    attempt: int = 0
    opened: StepNumber = _NEVER  # the seal from which on the present attempt is open
    heard: tuple[Heard, ...] = ()
    is_noticed: bool = False  # the coordinator says that nothing fitting came for what is missing
    convict: PeerId | None = None  # in the last round

    @property
    def is_of_sum(self) -> bool:
        """Whether it is a bucket, or a report on one: bytes are compared, nothing is replayed."""
        return self.kind == "bucket" or (self.kind == "report" and self.seeded_by is None)

    @property
    def auditor(self) -> PeerId | None:
        """Who owes a report now."""
        place = self.attempt - self.first
        if self.awaits is not None or place >= len(self.order):
            return None
        return self.order[place]

    @property
    def accuser(self) -> PeerId | None:
        """Who has said mismatch, until a second auditor has looked."""
        is_disputed = self.round == SECOND and self.heard[-1].verdict == "mismatch"
        return self.heard[-1].auditor if is_disputed else None

    @property
    def accused(self) -> PeerId | None:
        """Whose pay is frozen."""
        if self.accuser is not None:
            return self.doer
        return self.heard[0].auditor if self.round == THIRD else None

    @property
    def heard_of(self) -> tuple[PeerId, ...]:
        """Who has reported, the first one first."""
        return tuple(each.auditor for each in self.heard)

    def attempt_of(self, auditor: PeerId) -> int | None:
        """The attempt under which a report of `auditor` counts now, if any."""
        asked = self.order[: self.attempt - self.first + 1]
        if self.awaits is not None or auditor not in asked:
            return None
        return self.first + asked.index(auditor)


Change: TypeAlias = tuple[Case | None, tuple[Ruling, ...]]


def repeat_of(case: Case, said: Heard, held_since: StepNumber) -> Case:
    """A report on work or a bucket, as something that may be repeated outside."""
    return Case(
        said.report, "report", said.auditor, case.stage, case.step, held_since, case.flops,
        case.work, case.worker, said.verdict, None if case.is_of_sum else case.beacon,
    )  # fmt: skip


def drawn(case: Case, beacon: Digest, order: tuple[PeerId, ...], seal: StepNumber) -> Change:
    """The auditors of this round are known."""
    first = seal * (INSIDE + OUTSIDE)  # one seal draws a subject once
    case = replace(
        case, awaits=None, beacon=beacon, order=order, first=first, attempt=first, opened=seal
    )
    if not order:
        return _nobody_left(case, seal)
    return case, (Ruling("drawn", case.subject, seal, case.doer, order[:1]),)


def missed(case: Case, seal: StepNumber) -> Change:
    """The present auditor is late: the next one, if there is any."""
    assert case.auditor is not None  # checked with the Notice
    ruling = Ruling("missed", case.subject, seal, case.auditor)
    left, rulings = passed_over(case, seal)
    return left, (ruling, *rulings)


def passed_over(case: Case, seal: StepNumber) -> Change:
    """The present auditor is gone, or a convict: the next one, if there is any."""
    case = replace(case, attempt=case.attempt + 1, opened=seal)
    return (case, ()) if case.auditor is not None else _nobody_left(case, seal)


def hear(case: Case, said: Heard, seal: StepNumber) -> Change:
    """What follows from a report that counts."""
    if said.verdict == "missing" and not case.is_noticed:
        return case, ()  # without the coordinator's word it is only a silence
    heard = (*case.heard, said)
    case = replace(case, heard=heard)
    match case.round, said.verdict:
        case (0, "match"):
            return _closed(case, "settled", seal)
        case (0, "mismatch"):
            return _again(case, SECOND, seal, "accused", case.doer)
        case (0, _):
            return _again(case, SECOND, seal)
        case (1, verdict):
            return _second(case, verdict, seal)
        case (2, verdict):
            return _third(case, verdict, seal)
    agreeing = _agreeing(case)
    what: What = "slashable" if said.auditor in agreeing else "unconfirmed"
    by = agreeing if what == "slashable" else case.heard_of
    return None, (Ruling(what, case.subject, seal, _convict(case), by),)


def _second(case: Case, verdict: Verdict, seal: StepNumber) -> Change:
    first = case.heard[-2]
    match first.verdict, verdict:
        case (_, "missing"):
            return _closed(case, "missing", seal)
        case ("missing", "match"):
            return _closed(case, "settled", seal)
        case ("missing", _):  # only now is there a mismatch
            return _again(replace(case, heard=case.heard[-1:]), SECOND, seal, "accused", case.doer)
        case (_, "mismatch"):
            return _convicted(case, case.doer, seal)
    return _again(case, THIRD, seal, "contradicted", first.auditor)


def _third(case: Case, verdict: Verdict, seal: StepNumber) -> Change:
    first, second = case.heard[0], case.heard[1]
    match verdict:
        case "missing":
            return _closed(case, "missing", seal)
        case "match":
            return _convicted(case, first.auditor, seal)
    left, rulings = _convicted(case, case.doer, seal)
    against = (first.auditor, case.heard[2].auditor)
    also = Ruling("convicted", case.subject, seal, second.auditor, against)
    return left, (*rulings, also)


def _convicted(case: Case, convict: PeerId, seal: StepNumber) -> Change:
    against = tuple(each.auditor for each in case.heard if each.auditor != convict)
    ruling = Ruling("convicted", case.subject, seal, convict, against)
    case = replace(case, round=CONFIRMING, awaits=seal, convict=convict, is_noticed=False)
    return case, (ruling,)


def _again(
    case: Case, number: int, seal: StepNumber, what: What | None = None, whom: PeerId | None = None
) -> Change:
    """Another round, by the beacon of the seal that we are in."""
    case = replace(case, round=number, awaits=seal, order=())
    if what is None or whom is None:
        return case, ()
    return case, (Ruling(what, case.subject, seal, whom, case.heard_of),)


def _nobody_left(case: Case, seal: StepNumber) -> Change:
    if case.round == CONFIRMING:
        ruling = Ruling("unconfirmed", case.subject, seal, _convict(case), case.heard_of)
        return None, (ruling,)
    return _closed(case, "unrepeated", seal)


def _closed(case: Case, what: What, seal: StepNumber) -> Change:
    # Who has repeated a report, or signed it, never held what is missing.
    whom = case.worker if what == "missing" else case.doer
    return None, (Ruling(what, case.subject, seal, whom, case.heard_of),)


def _agreeing(case: Case) -> tuple[PeerId, ...]:
    """Who said what convicts; they alone may show why, as its friend would show junk."""
    verdict = "mismatch" if case.convict == case.doer else "match"
    return tuple(each.auditor for each in case.heard if each.verdict == verdict)


def _convict(case: Case) -> PeerId:
    assert case.convict is not None  # of the last round
    return case.convict
