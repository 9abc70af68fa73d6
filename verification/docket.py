"""Every draw of a job and what became of it: the fold that pay waits for. Pure.

Satisfies `contracts.governance.checking.Checking`. A seal brings beacons, reports and Notices; from
them follow which claims of work, of buckets and of reports are drawn, who owes an audit, and whose
pay vests, waits, is frozen or is lost. Coordinator, members, market and audit file fold this one
function, so nobody assigns and everybody derives. What may be drawn, and who audits it, is in
`selection`, a single draw's life in `cases`.

Rules of a seal (beside those of `contracts.governance.rounds`):
- beacons come in the order of the steps that they draw, and after the seal that they draw;
- no work while more than `MAX_UNDRAWN` steps wait for their beacon, or when the audit budget could
  not pay, at the dearest price, for one more step that is drawn whole beside all that is open;
- a `missed_report` Notice names the auditor whose turn it is, D seals after that turn began, also
  one that has left; a `missing_data` Notice an open case and who did its work;
- a convict who is a member is suspended in the next seal;
- the last seal leaves nothing open.
A report that is not wanted (any more), or whose verdict does not follow from its distances, counts
for nothing; so does a Notice that one was missed which the same seal holds. Who is asked depends on
the work, the beacon and convictions, and not on who is said to have left since: the coordinator
knows the beacon before it says so.

Invariants: nobody's pay vests past an open case of its work; audits are paid no more than their
budget; money is moved by `vesting` only. Source: docs/protocol.md 4 to 7.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

from contracts.governance.checking import (
    Cause,
    Forfeit,
    Late,
    Reported,
    RoundFacts,
    Standing,
    Terms,
)
from contracts.governance.record import JobRecord
from contracts.governance.rounds import flops_of, require
from contracts.terms.amounts import FLOPS_PER_PFLOP, Flops
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import JobSpec, StepBeacon
from verification.distances.thresholds import Calibration, shipped_calibration
from verification.draws import cases, economics, selection
from verification.draws.cases import CONFIRMING, Case, Change, Heard, Ruling
from verification.draws.odds import Exposed
from verification.draws.selection import (
    Candidates,
    Drawable,
    MoneyAtRisk,
    Rules,
    Weights,
    again,
    is_drawn,
    ordering_beacon,
    rules_of,
    step_beacon,
)
from verification.verdicts import limits_of, verdict_of


@dataclass(frozen=True)
class PaidAudit:
    """A report that counts, on a case as it was, and the FLOPs that it is paid for."""

    said: Heard
    attempt: int
    case: Case
    flops: Flops


@dataclass(frozen=True)
class Docket:
    """The draws of a job after a seal."""

    rules: Rules
    undrawn: Mapping[StepNumber, tuple[Drawable, ...]] = field(default_factory=dict)  # ascending
    open: Mapping[Digest, tuple[Case, Weights]] = field(default_factory=dict)  # by subject
    earned: Mapping[PeerId, Mapping[StepNumber, Flops]] = field(default_factory=dict)  # recently
    watched: Mapping[PeerId, int] = field(default_factory=dict)  # claims since unrepeated
    classes: Mapping[PeerId, str] = field(default_factory=dict)  # of devices, of all who worked
    convicts: frozenset[PeerId] = frozenset()
    spent: int = 0  # on audits, base units x 1e15
    rulings: tuple[Ruling, ...] = ()  # of the newest seal
    exposed: tuple[tuple[PeerId, Exposed], ...] = ()  # claims of work of the newest seal
    audits: tuple[PaidAudit, ...] = ()  # the reports that count in the newest seal

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits for a beacon, an auditor or a verdict."""
        return not self.undrawn and not self.open

    def takes_work(self, beacons: int) -> bool:
        """Whether a step with work may be closed whose seal holds so many of the next beacons."""
        is_known = len(self.undrawn) - beacons <= economics.MAX_UNDRAWN
        return is_known and not self.is_spent

    @property
    def is_spent(self) -> bool:
        """Whether the budget for audits does not cover one more step beside all that is open."""
        needed = self.reserved + self.rules.step_audits
        return self.left < needed * self.rules.dearest

    @property
    def left(self) -> int:
        """Of the budget for audits, in base units x 1e15."""
        return self.rules.audit.budget * FLOPS_PER_PFLOP - self.spent

    @cached_property
    def reserved(self) -> int:
        """FLOPs of the audits that may follow from what is sealed, as if every work was drawn.

        Reports count as often as they are drawn: a budget is not kept for luck.
        """
        opened = sum(self.rules.audits_of(case) for case, _ in self.open.values())
        undrawn = (each for found in self.undrawn.values() for each in found)
        return opened + sum(
            ceil(each.case.flops * each.rate)
            if each.case.kind == "report"
            else self.rules.audits_of(each.case)
            for each in undrawn
        )

    @property
    def oldest_needed(self) -> StepNumber | None:
        """The oldest step whose states, tensors and parts are still needed; None: of no step."""
        steps = [each.case.step for found in self.undrawn.values() for each in found]
        steps += [case.step for case, _ in self.open.values()]
        return min(steps, default=None)

    def needed_of(self, step: StepNumber) -> frozenset[Digest] | None:
        """Claims of work and buckets made in a step that audits of them may still need.

        None: all, its beacon is not here. A report of it that may be repeated needs the work too; a
        conviction of its auditor opens no work that was not needed before.
        """
        if any(each.case.step == step for each in self.undrawn.get(step, ())):
            return None
        undrawn = (each.case for found in self.undrawn.values() for each in found)
        cases = (*(case for case, _ in self.open.values()), *undrawn)
        return frozenset(case.work for case in cases if case.step == step)

    def owed_by(self, peer: PeerId) -> tuple[Case, ...]:
        """What a peer has to audit now."""
        return tuple(case for case, _ in self.open.values() if case.auditor == peer)

    def awaited(self) -> tuple[Late, ...]:
        """Every report that somebody owes, and since when."""
        return tuple(
            Late(case.auditor, case.stage, case.subject, case.attempt, case.opened, case.heard_of)
            for case, _ in self.open.values()
            if case.auditor is not None
        )

    def wants(self, report: Reported) -> bool:
        """Whether a report counts, if the next seal holds it."""
        case, _ = self.open.get(report.claim.subject, (None, {}))
        return case is not None and self.counts(case, report)

    def counts(self, case: Case, report: Reported) -> bool:
        """Whether a report is by who was asked, and its verdict follows from its distances."""
        claim = report.claim
        is_asked = case.attempt_of(claim.peer) == claim.attempt
        is_of_it = (claim.round, claim.group) == (case.step, case.stage)
        return is_asked and is_of_it and self._verdict_follows(case, report)

    def _verdict_follows(self, case: Case, report: Reported) -> bool:
        found = report.findings
        if found.verdict == "missing":  # without the coordinator's word it is only a silence
            return case.is_noticed and not found.distances
        if case.is_of_sum:
            return not found.distances
        try:
            limits = limits_of(self.rules, case, report.claim.peer, self.classes)
            return verdict_of(case, found.distances, limits) == found.verdict
        except (Refused, Malformed):
            return False

    # --------------------------------------------------------------------------- money at risk

    def most_units(
        self, step: StepNumber, stage: StageIndex, expected: Weights, terms: Terms
    ) -> Mapping[PeerId, int]:
        """See `Checking.most_units`."""
        return self.at_risk(step, terms).most_units(stage, expected)

    def at_risk(self, step: StepNumber, terms: Terms) -> MoneyAtRisk:
        """What members would lose by a conviction for `step`."""
        return MoneyAtRisk(self.rules, terms, step, self.earned, _frozen(self))

    # ------------------------------------------------------------------------------ one more seal

    def after(self, facts: RoundFacts, terms: Terms) -> "tuple[Docket, Standing]":
        """See `Checking.after`."""
        takes_work = self.takes_work(len(facts.beacons))
        require(not facts.claims or takes_work, "round_closed", "too much waits to be drawn")
        fold = _Fold(self, facts, terms)
        fold.take_notices()
        fold.take_beacons()
        fold.take_reports()
        fold.note_step()
        docket = fold.docket
        require(not facts.last or docket.is_clear, "last", "draws are open")
        return docket, fold.standing()


def begin(spec: JobSpec, outside: AuditorList, table: Calibration) -> Docket:
    """The docket of a job whose spec has an audit.

    Raises:
        Refused: verdicts are to follow from another calibration table.
    """
    return Docket(rules_of(spec, outside, table))


def begin_job(spec: JobSpec, outside: AuditorList) -> Docket:
    """`begin` with the calibration table that comes with this version."""
    return begin(spec, outside, shipped_calibration())


def docket_of(record: JobRecord) -> Docket:
    """The docket of a job that is checked, which alone is audited."""
    assert isinstance(record.checking, Docket)
    return record.checking


def classes_of(record: JobRecord) -> dict[PeerId, str]:
    """Device classes of all who may work or audit, outside auditors included."""
    return {peer: lease.device_class for peer, lease in record.pay_leases().items()}


class _Fold:
    """One seal taken into a docket."""

    def __init__(self, docket: Docket, facts: RoundFacts, terms: Terms) -> None:
        classes = {peer: lease.device_class for peer, lease in terms.leases.items()}
        self.docket = replace(docket, rulings=(), exposed=(), audits=(), classes=classes)
        self._rules, self._facts, self._terms = docket.rules, facts, terms
        self._members = dict(terms.members)  # without who leaves in this seal
        self._forfeits: list[Forfeit] = []
        self._audits: Counter[PeerId] = Counter()
        self._new: list[Drawable] = []

    # ---------------------------------------------------------------------------------- notices

    def take_notices(self) -> None:
        """Missed reports, missing data, suspensions."""
        suspended = {each.peer for each in self._facts.notices if each.what == "suspension"}
        due = self.docket.convicts & self._terms.members.keys()
        gone = {each.peer for each in self._facts.notices if each.what == "leave"}
        self._members = {p: s for p, s in self._members.items() if p not in gone | suspended}
        require(due - gone <= suspended, "suspension", "a convict is still a member")
        require(suspended <= self.docket.convicts, "suspension", "of somebody not convicted")
        for notice in self._facts.notices:
            if notice.what == "missed_report":
                self._miss(notice.evidence, notice.peer)
            elif notice.what == "missing_data" and notice.evidence in self.docket.open:
                self._note_missing(notice.evidence, notice.peer)
        self._pass_over()

    def _pass_over(self) -> None:
        """A convict is not waited for: the next one is asked at once."""
        convicts = self.docket.convicts
        while waiting := [
            case for case, _ in self.docket.open.values() if case.auditor in convicts
        ]:
            for case in waiting:
                self._apply(case, cases.passed_over(case, self._facts.step))

    def _miss(self, subject: Digest, auditor: PeerId) -> None:
        case, _ = self.docket.open.get(subject, (None, {}))
        require(
            case is not None and case.auditor == auditor, "missed_report", "nobody waits for it"
        )
        assert case is not None  # as just required
        due = case.opened + self._rules.audit.deadline
        require(self._facts.step >= due, "missed_report", f"not before the seal of step {due}")
        reports = [each for each in self._facts.reports if each.claim.subject == subject]
        if any(each.claim.peer == auditor and self.docket.counts(case, each) for each in reports):
            return  # it came after all
        asked = (self._members.keys() | self._rules.outside.keys()) - self.docket.convicts
        if auditor not in asked:  # dying is no offence, and a convict is not waited for
            self._apply(case, cases.passed_over(case, self._facts.step))
            return
        if (newest := max(self.docket.earned.get(auditor, ()), default=None)) is not None:
            self._forfeit(auditor, newest, "missed_report")
        self._apply(case, cases.missed(case, self._facts.step))

    def _note_missing(self, subject: Digest, doer: PeerId) -> None:
        case, inside = self.docket.open[subject]
        require(case.worker == doer, "missing_data", "is about somebody else")
        found = {**self.docket.open, subject: (replace(case, is_noticed=True), inside)}
        self.docket = replace(self.docket, open=found)

    # ---------------------------------------------------------------------------------- beacons

    def take_beacons(self) -> None:
        """Draw the steps whose beacons are here, and later rounds of older cases."""
        for beacon in sorted(self._facts.beacons, key=lambda each: each.of):
            expected = next(iter(self.docket.undrawn), None)
            require(beacon.of == expected, "step_beacon", "not of the next step")
            self._draw(beacon)

    def _draw(self, beacon: StepBeacon) -> None:
        is_served = beacon.batch != ZERO_DIGEST
        found = step_beacon(self._rules.job, beacon.of, beacon.beacon) if is_served else None
        known = ordering_beacon(self._rules.job, beacon.of, beacon.beacon)
        left = {step: each for step, each in self.docket.undrawn.items() if step != beacon.of}
        undrawn = self.docket.undrawn[beacon.of]
        self.docket = replace(self.docket, undrawn=left)
        for each in undrawn:
            if is_drawn(found, each.name, each.rate):
                self._open(each, known)
        waiting = [case for case, _ in self.docket.open.values() if case.awaits == beacon.of]
        for case in waiting:
            _, inside = self.docket.open[case.subject]
            order = self._candidates.order(case, again(case.subject, case.round), inside, known)
            self._apply(case, cases.drawn(case, known, order, self._facts.step))

    def _open(self, each: Drawable, beacon: Digest) -> None:
        order = self._candidates.order(each.case, each.name, each.inside, beacon)
        opened = {**self.docket.open, each.case.subject: (each.case, each.inside)}
        self.docket = replace(self.docket, open=opened)
        self._apply(each.case, cases.drawn(each.case, beacon, order, self._facts.step))

    # ---------------------------------------------------------------------------------- reports

    def take_reports(self) -> None:
        """Reports in the order of attempts: a lower one outranks a higher one."""
        reports = self._facts.reports
        for report in sorted(reports, key=lambda each: (each.claim.attempt, each.claim.digest())):
            case, inside = self.docket.open.get(report.claim.subject, (None, {}))
            if case is None:
                continue
            # A Notice in this seal has opened the next attempt; the one before was drawn earlier.
            in_time = report.claim.attempt < case.attempt or case.opened < self._facts.step
            if in_time and self.docket.counts(case, report):
                self._hear(case, inside, report)

    def _hear(self, case: Case, inside: Weights, report: Reported) -> None:
        claim = report.claim
        price = self._rules.lease(self._terms, claim.peer).price
        # Disputes may cost more than was kept for them: no seal may say more than the budget.
        paid = min(case.flops, self.docket.left // price)
        self._audits[claim.peer] += paid
        spent = self.docket.spent + paid * price
        said = Heard(claim.peer, report.findings.verdict, claim.digest())
        audit = PaidAudit(said, claim.attempt, case, Flops(paid))
        self.docket = replace(
            self.docket,
            spent=spent,
            audits=(*self.docket.audits, audit),
        )
        if case.kind != "report" and case.round != CONFIRMING and said.verdict != "missing":
            rate = self._at_risk.repeat_rate(said.auditor, case.flops)
            drawable = selection.repeat(claim, said, case, rate, inside, self._facts.step)
            self._new.append(drawable)
        self._apply(case, cases.hear(case, said, self._facts.step))

    # --------------------------------------------------------------------------------- the step

    def note_step(self) -> None:
        """What this seal holds may be drawn later; who earned what in it."""
        totals: Counter[PeerId] = Counter()
        for claim in self._facts.claims:
            totals[claim.peer] += flops_of(self._rules.spec, claim)
        self._new += self._work(totals)
        self._new += self._buckets()
        is_awaited = any(each.awaits == self._facts.step for each, _ in self.docket.open.values())
        if self._new or is_awaited:
            undrawn = {**self.docket.undrawn, self._facts.step: tuple(self._new)}
            self.docket = replace(self.docket, undrawn=undrawn)
        self._note_earned()

    def _work(self, totals: Mapping[PeerId, int]) -> list[Drawable]:
        found, watched = [], dict(self.docket.watched)
        exposed: list[tuple[PeerId, Exposed]] = []
        candidates, at_risk = self._candidates, self._at_risk
        for claim in self._facts.claims:
            peer = claim.peer
            inside = candidates.of_stage(claim.group, peer, self._facts.claims)
            phi = candidates.largest_owner(inside)
            rate = economics.forced(
                at_risk.rate(peer, Flops(totals[peer]), phi),
                above_gate=claim.digest() in self._facts.above,
                since_unrepeated=watched.get(peer),
            )
            exposed.append((peer, Exposed(rate, phi)))
            if peer in watched:
                watched[peer] += 1
            flops = flops_of(self._rules.spec, claim)
            found.append(selection.drawable(claim, flops, rate, inside, self._facts.step))
        self.docket = replace(self.docket, watched=watched, exposed=tuple(exposed))
        return found

    def _buckets(self) -> list[Drawable]:
        facts, rate, found = self._facts, self._rules.terms.sums, []
        for claim in facts.buckets:
            inside = self._candidates.of_stage(claim.group, claim.peer, facts.claims)
            found.append(selection.drawable(claim, Flops(0), rate, inside, facts.step))
        return found

    @property
    def _candidates(self) -> Candidates:
        return Candidates(self._rules, self._terms, self.docket.convicts)

    @property
    def _at_risk(self) -> MoneyAtRisk:
        return self.docket.at_risk(self._facts.step, self._terms)

    def _note_earned(self) -> None:
        oldest = self._facts.step - self._rules.terms.window
        fresh = Counter(self._facts.work) + self._audits
        kept = {
            peer: {step: flops for step, flops in steps.items() if step >= oldest}
            for peer, steps in self.docket.earned.items()
        }
        for peer, flops in fresh.items():
            kept[peer] = {**kept.get(peer, {}), self._facts.step: Flops(flops)}
        self.docket = replace(self.docket, earned={p: each for p, each in kept.items() if each})

    # ------------------------------------------------------------------------------ consequences

    def _apply(self, case: Case, change: Change) -> None:
        after, rulings = change
        opened = dict(self.docket.open)
        inside = opened.pop(case.subject)[1]
        if after is not None:
            opened[case.subject] = after, inside
        self.docket = replace(self.docket, open=opened, rulings=(*self.docket.rulings, *rulings))
        for ruling in rulings:
            self._follow(case, inside, ruling)

    def _follow(self, case: Case, inside: Weights, ruling: Ruling) -> None:
        match ruling.what:
            case "convicted":
                convicts = self.docket.convicts | {ruling.peer}
                self.docket = replace(self.docket, convicts=convicts)
                self._forfeit(ruling.peer, None, "convicted")
                if case.kind == "report" and ruling.peer == case.doer:
                    self._reopen(case, inside)
            case "missing":
                self._forfeit(ruling.peer, None, "missing_data")
            case "unrepeated" if case.kind == "work":
                self.docket = replace(self.docket, watched={**self.docket.watched, case.doer: 0})

    def _reopen(self, case: Case, inside: Weights) -> None:
        """What a convicted auditor has reported on is audited once more, by the next beacon."""
        if case.work in self.docket.open:
            return
        kind: cases.Kind = "bucket" if case.is_of_sum else "work"
        reopened = Case(
            case.work, kind, case.worker, case.stage, case.step, case.step, case.flops,
            case.work, case.worker, awaits=self._facts.step,
        )  # fmt: skip
        opened = {**self.docket.open, case.work: (reopened, inside)}
        self.docket = replace(self.docket, open=opened)

    def _forfeit(self, peer: PeerId, step: StepNumber | None, cause: Cause) -> None:
        self._forfeits.append(Forfeit(peer, step, cause))
        own = self.docket.earned.get(peer, {})
        left = {} if step is None else {at: work for at, work in own.items() if at != step}
        self.docket = replace(self.docket, earned={**self.docket.earned, peer: left})

    def standing(self) -> Standing:
        """What all this says about pay."""
        convicts = [Forfeit(peer) for peer in sorted(self.docket.convicts)]
        waiting = min(self.docket.undrawn, default=StepNumber(self._facts.step + 1))
        return Standing(
            settled_to=StepNumber(waiting - 1),
            open_since=_open_since(self.docket),
            owing=frozenset(case.auditor for case, _ in self.docket.open.values() if case.auditor),
            frozen=_frozen(self.docket),
            forfeits=(*self._forfeits, *convicts),
            audits={peer: Flops(flops) for peer, flops in self._audits.items() if flops},
        )


def _frozen(docket: Docket) -> frozenset[PeerId]:
    return frozenset(case.accused for case, _ in docket.open.values() if case.accused is not None)


def _open_since(docket: Docket) -> dict[PeerId, StepNumber]:
    """The first step of each peer whose draw is open; a conviction that is confirmed holds none."""
    found: dict[PeerId, StepNumber] = {}
    for case, _ in docket.open.values():
        if case.round != CONFIRMING:
            found[case.doer] = min(case.held_since, found.get(case.doer, case.held_since))
    return found
