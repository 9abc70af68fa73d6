"""Every draw of a job and what became of it: the fold that pay waits for. Pure.

Satisfies `contracts.governance.checking.Checking`. A seal brings coins, reports and Notices; from
them follow which peer-steps, sums and reports are drawn, who owes an audit, and whose pay vests,
waits, is frozen or is lost. Coordinator, members, ledger and audit file fold this one function, so
nobody assigns and everybody derives. A single draw's life is in `cases`.

Rules of a seal (beside those of `contracts.governance.steps`):
- coins come in the order of the steps that they draw, and after the seal that they draw;
- no work while more than `MAX_UNDRAWN` steps wait for their coin, or when the audit budget could
  not pay, at the dearest price, for one more step that is drawn whole beside all that is open;
- a `missed_report` Notice names the auditor whose turn it is, D seals after that turn began, also
  one that has left; a `missing_data` Notice an open case and who did its work;
- a convict who is a member is suspended in the next seal;
- the last seal leaves nothing open.
A report that is not wanted (any more), or whose verdict does not follow from its distances, counts
for nothing; so does a Notice that one was missed which the same seal holds. Who is asked depends on
the work, the coin and convictions, and not on who is said to have left since: the coordinator knows
the coin before it says so.

Invariants: auditors of a subject are of other owners than its doer and each other; nobody's pay
vests past an open case of its work; audits are paid no more than their budget; money is moved by
`vesting` only. Source: PROTOCOL 4 to 7.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from math import ceil
from typing import TypeAlias

from contracts.governance.checking import Forfeit, Late, Standing, StepFacts, Terms
from contracts.governance.pay import Lease
from contracts.governance.steps import require
from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, Flops, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    Digest,
    JobId,
    PeerId,
    StageIndex,
    StepNumber,
)
from contracts.terms.messages import AuditReport, AuditSpec, JobSpec, StepCoin, Verdict
from verification import cases, economics
from verification.cases import CONFIRMING, INSIDE, OUTSIDE, THIRD, Case, Change, Heard, Ruling
from verification.coin import ordering_coin, step_coin
from verification.draws import Again, Chunk, PeerStep, Repeat, Subject, auditor_order, is_drawn
from verification.odds import Exposed
from verification.thresholds import (
    MEASURES,
    Calibration,
    Recipe,
    decide,
    distance_name,
    gradients_of,
    projections_allowed,
    shipped_calibration,
    stage_kinds,
)

PROJECTIONS = "projections"
"""The distance of a repeated report's projections from those of who repeats it, 1e-9 of a norm."""

Weights: TypeAlias = Mapping[PeerId, int]


@dataclass(frozen=True)
class Drawable:
    """A message that the coin of its seal may draw."""

    subject: Subject
    rate: Fraction
    case: Case  # as it begins
    inside: Weights  # who of the stage may audit it


@dataclass(frozen=True)
class Rules:
    """What never changes in a job."""

    job: JobId
    spec: JobSpec
    audit: AuditSpec
    table: Calibration
    outside: Mapping[PeerId, Lease]  # their stake, and the price of an outside audit

    @cached_property
    def terms(self) -> economics.Terms:
        """The numbers as rationals; where nobody is outside, nothing is repeated."""
        terms = economics.terms_of(self.audit, self.spec.rules.vesting_window)
        return terms if self.outside else replace(terms, repeats=Fraction(0))

    def power(self, phi: Fraction | None) -> Fraction:
        """d of a peer-step; zero where there is nobody at all to see it."""
        if phi is None and not self.outside:
            return Fraction(0)
        return economics.power(self.terms, phi)

    def lease(self, terms: Terms, peer: PeerId) -> Lease:
        """Of a member or an outside auditor."""
        return terms.leases.get(peer) or self.outside[peer]

    @property
    def dearest(self) -> PricePerPflop:
        """The most that an audit is paid by, inside or outside."""
        return max(self.audit.price, self.spec.price_ceiling)

    @cached_property
    def step_audits(self) -> int:
        """FLOPs of the audits of a step that is drawn whole."""
        flops = sum(self.spec.unit_flops) * self.spec.batch.units_per_step
        return economics.audits_at_once(self.terms, flops)

    def audits_of(self, case: Case) -> int:
        """FLOPs of the audits that a case may need; a report is repeated once."""
        if case.kind == "report":
            return case.flops
        return economics.audits_at_once(self.terms, case.flops)


@dataclass(frozen=True)
class Docket:
    """The draws of a job after a seal."""

    rules: Rules
    undrawn: Mapping[StepNumber, tuple[Drawable, ...]] = field(default_factory=dict)  # ascending
    open: Mapping[Digest, tuple[Case, Weights]] = field(default_factory=dict)  # by subject
    earned: Mapping[PeerId, Mapping[StepNumber, Flops]] = field(default_factory=dict)  # recently
    watched: Mapping[PeerId, int] = field(default_factory=dict)  # peer-steps since unrepeated
    classes: Mapping[PeerId, str] = field(default_factory=dict)  # of devices, of all who worked
    convicts: frozenset[PeerId] = frozenset()
    spent: int = 0  # on audits, base units x 1e15
    rulings: tuple[Ruling, ...] = ()  # of the newest seal
    exposed: tuple[tuple[PeerId, Exposed], ...] = ()  # peer-steps of the newest seal
    heard: tuple[PeerId, ...] = ()  # whose reports count in the newest seal

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits for a coin, an auditor or a verdict."""
        return not self.undrawn and not self.open

    def takes_work(self, coins: int) -> bool:
        """Whether a step with work may be closed whose seal holds so many of the next coins."""
        is_known = len(self.undrawn) - coins <= economics.MAX_UNDRAWN
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
        """GradCommits to replay and AveragedChunks to sum that audits of a step may still need.

        None: all, its coin is not here. A report of it that may be repeated needs the work too; a
        conviction of its auditor opens no work that was not needed before.
        """
        if step in self.undrawn:
            return None
        reports = (each.case for found in self.undrawn.values() for each in found)
        cases = (*(case for case, _ in self.open.values()), *reports)
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

    def wants(self, report: AuditReport) -> bool:
        """Whether a report counts, if the next seal holds it."""
        case, _ = self.open.get(report.subject, (None, {}))
        return case is not None and self.counts(case, report)

    def counts(self, case: Case, report: AuditReport) -> bool:
        """Whether a report is by who was asked, and its verdict follows from its distances."""
        is_asked = case.attempt_of(report.auditor) == report.attempt
        is_of_it = (report.step, report.stage) == (case.step, case.stage)
        return is_asked and is_of_it and self._verdict_follows(case, report)

    def _verdict_follows(self, case: Case, report: AuditReport) -> bool:
        if report.verdict == "missing":  # without the coordinator's word it is only a silence
            return case.is_noticed and not report.distances
        if case.kind == "sum":
            return not report.distances
        try:
            limits = limits_of(self.rules, case, report.auditor, self.classes)
            return verdict_of(case, report.distances, limits) == report.verdict
        except (Refused, Malformed):
            return False

    # --------------------------------------------------------------------------- money at risk

    def most_units(
        self, step: StepNumber, stage: StageIndex, expected: Weights, terms: Terms
    ) -> Mapping[PeerId, int]:
        """See `Checking.most_units`."""
        owners = {peer: terms.leases[peer].account for peer in expected}
        found = {}
        for peer, own in owners.items():
            others = Counter[Address]()
            for mate, units in expected.items():
                if owners[mate] != own and units:
                    others[owners[mate]] += units
            phi = economics.largest_owner(others)
            work = economics.most_work(
                self._most_value(peer, step, phi, terms), terms.leases[peer].price
            )
            found[peer] = work // self.rules.spec.unit_flops[stage]
        return found

    def _most_value(
        self, peer: PeerId, step: StepNumber, phi: Fraction | None, terms: Terms
    ) -> BaseUnits:
        lease = terms.leases[peer]
        return economics.most_value(
            self.rules.terms,
            stake=stake_at_risk(peer, terms),
            waiting=self.waiting(peer, lease, step),
            power=self.rules.power(phi),
        )

    def waiting(self, peer: PeerId, lease: Lease, step: StepNumber) -> BaseUnits:
        """U: what a peer earned in the W steps before `step` and is not frozen."""
        if peer in _frozen(self):
            return BaseUnits(0)
        recent = self.earned.get(peer, {})
        return economics.waiting(recent, lease.price, step=step, window=self.rules.terms.window)

    # ------------------------------------------------------------------------------ one more seal

    def after(self, facts: StepFacts, terms: Terms) -> "tuple[Docket, Standing]":
        """See `Checking.after`."""
        takes_work = self.takes_work(len(facts.coins))
        require(not facts.commits or takes_work, "step_close", "too much waits to be drawn")
        fold = _Fold(self, facts, terms)
        fold.take_notices()
        fold.take_coins()
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
    audit = spec.rules.audit
    assert audit is not None  # else nobody checks anything
    if table.digest() != audit.thresholds:
        raise Refused("the job names another calibration table", thresholds=audit.thresholds.hex())
    leases = {
        each.peer: Lease(each.account, audit.price, each.stake, each.device_class)
        for each in outside.auditors
    }
    return Docket(Rules(spec.job(), spec, audit, table, leases))


def thresholds_of(
    rules: Rules, stage: StageIndex, own_class: str, claimed_class: str
) -> dict[str, int]:
    """The most that honest distances of a stage may be; raises as `Calibration.thresholds`."""
    spec = rules.spec
    recipe = Recipe(spec.rules.boundary_codec, spec.rules.gradient_codec)
    return rules.table.thresholds(recipe, kinds_of(spec, stage), own_class, claimed_class)


def limits_of(
    rules: Rules, case: Case, auditor: PeerId, classes: Mapping[PeerId, str]
) -> dict[str, int]:
    """The most that each distance of a report on `case` may be in a match.

    Projections of a repeated report are held against gradients as no codec has rounded them, which
    lie apart by no more than the farthest of their parameters.

    Raises:
        Refused: the table does not hold these device classes.
    """
    own = classes[auditor]
    limits = thresholds_of(rules, case.stage, own, classes[case.worker])
    if case.kind != "report":
        return limits
    kinds = gradients_of(kinds_of(rules.spec, case.stage))
    exact = rules.table.thresholds(Recipe(), kinds, own, classes[case.doer])
    farthest = max(exact[distance_name(kind, MEASURES[0])] for kind in kinds)
    return {**limits, PROJECTIONS: projections_allowed(farthest)}


def kinds_of(spec: JobSpec, stage: StageIndex) -> tuple[str, ...]:
    """The tensor kinds that an audit of a stage of this job compares."""
    is_last = stage == spec.batch.stages - 1
    return stage_kinds(is_first=stage == 0, is_last=is_last, tied_head=spec.model.tied_head)


def verdict_of(
    case: Case, distances: Sequence[tuple[str, int]], limits: Mapping[str, int]
) -> Verdict:
    """What follows from the distances of a report on `case`.

    Who repeats a report agrees with it if the work is what it said, and if it knows the numbers
    that only a replay shows.

    Raises:
        Malformed: a distance is missing, unknown or stated twice.
    """
    if case.kind != "report":
        return decide(distances, limits)
    work = {name: most for name, most in limits.items() if name != PROJECTIONS}
    found = decide([each for each in distances if each[0] != PROJECTIONS], work)
    own = [value for name, value in distances if name == PROJECTIONS]
    if len(own) != 1:
        raise Malformed("a repeat says once how far the projections lie apart")
    return "match" if found == case.said and own[0] <= limits[PROJECTIONS] else "mismatch"


def begin_job(spec: JobSpec, outside: AuditorList) -> Docket:
    """`begin` with the calibration table that comes with this version."""
    return begin(spec, outside, shipped_calibration())


class _Fold:
    """One seal taken into a docket."""

    def __init__(self, docket: Docket, facts: StepFacts, terms: Terms) -> None:
        classes = {peer: lease.device_class for peer, lease in terms.leases.items()}
        self.docket = replace(docket, rulings=(), exposed=(), heard=(), classes=classes)
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
        reports = [each for each in self._facts.reports if each.subject == subject]
        if any(each.auditor == auditor and self.docket.counts(case, each) for each in reports):
            return  # it came after all
        if auditor not in self._members.keys() | self._rules.outside.keys():
            self._apply(case, cases.passed_over(case, self._facts.step))  # dying is no offence
            return
        if (newest := max(self.docket.earned.get(auditor, ()), default=None)) is not None:
            self._forfeit(auditor, newest)
        self._apply(case, cases.missed(case, self._facts.step))

    def _note_missing(self, subject: Digest, doer: PeerId) -> None:
        case, inside = self.docket.open[subject]
        require(case.worker == doer, "missing_data", "is about somebody else")
        found = {**self.docket.open, subject: (replace(case, is_noticed=True), inside)}
        self.docket = replace(self.docket, open=found)

    # ------------------------------------------------------------------------------------ coins

    def take_coins(self) -> None:
        """Draw the steps whose coins are here, and later rounds of older cases."""
        for coin in sorted(self._facts.coins, key=lambda each: each.of):
            expected = next(iter(self.docket.undrawn), None)
            require(coin.of == expected, "step_coin", "not of the next step")
            self._draw(coin)

    def _draw(self, coin: StepCoin) -> None:
        is_served = coin.batch != ZERO_DIGEST
        found = step_coin(self._rules.job, coin.of, coin.coin) if is_served else None
        known = ordering_coin(self._rules.job, coin.of, coin.coin)
        left = {step: each for step, each in self.docket.undrawn.items() if step != coin.of}
        drawables = self.docket.undrawn[coin.of]
        self.docket = replace(self.docket, undrawn=left)
        for each in drawables:
            if is_drawn(found, each.subject, each.rate):
                self._open(each, known)
        waiting = [case for case, _ in self.docket.open.values() if case.awaits == coin.of]
        for case in waiting:
            _, inside = self.docket.open[case.subject]
            order = self._order(case, Again(case.subject, case.round), inside, known)
            self._apply(case, cases.drawn(case, known, order, self._facts.step))

    def _open(self, each: Drawable, coin: Digest) -> None:
        order = self._order(each.case, each.subject, each.inside, coin)
        opened = {**self.docket.open, each.case.subject: (each.case, each.inside)}
        self.docket = replace(self.docket, open=opened)
        self._apply(each.case, cases.drawn(each.case, coin, order, self._facts.step))

    def _order(
        self, case: Case, subject: Subject, inside: Weights, coin: Digest
    ) -> tuple[PeerId, ...]:
        """Auditors of a round: of the stage first, then of all that is staked."""
        heard = (each.auditor for each in case.heard)
        taken = {self._owner(peer) for peer in (case.doer, case.worker, *heard)}
        far = {p: each.stake for p, each in self._rules.outside.items() if self._fits(p, taken)}
        near = {peer: units for peer, units in inside.items() if self._fits(peer, taken)}
        if case.round == CONFIRMING or case.kind == "report" or (case.round == THIRD and far):
            near = {}  # two owners of a stage must not outvote an honest one there
        inner = _each_owner_once(auditor_order(coin, subject, near), self._owner)
        first = tuple(islice(inner, INSIDE))
        owners = {self._owner(peer) for peer in first}
        outer = (p for p in auditor_order(coin, subject, far) if self._owner(p) not in owners)
        return (*first, *islice(outer, OUTSIDE))

    def _fits(self, peer: PeerId, taken: set[Address]) -> bool:
        owner = self._owner(peer)
        # A friend who was convicted must not come back as another machine of the same wallet.
        return owner not in taken and owner not in map(self._owner, self.docket.convicts)

    def _owner(self, peer: PeerId) -> Address:
        return self._rules.lease(self._terms, peer).account

    # ---------------------------------------------------------------------------------- reports

    def take_reports(self) -> None:
        """Reports in the order of attempts: a lower one outranks a higher one."""
        ordered = sorted(self._facts.reports, key=lambda each: (each.attempt, each.digest()))
        for report in ordered:
            case, inside = self.docket.open.get(report.subject, (None, {}))
            if case is None:
                continue
            # A Notice in this seal has opened the next attempt; the one before was drawn earlier.
            in_time = report.attempt < case.attempt or case.opened < self._facts.step
            if in_time and self.docket.counts(case, report):
                self._hear(case, inside, report)

    def _hear(self, case: Case, inside: Weights, report: AuditReport) -> None:
        price = self._rules.lease(self._terms, report.auditor).price
        # Disputes may cost more than was kept for them: no seal may say more than the budget.
        paid = min(case.flops, self.docket.left // price)
        self._audits[report.auditor] += paid
        spent, heard = self.docket.spent + paid * price, self.docket.heard
        self.docket = replace(self.docket, spent=spent, heard=(*heard, report.auditor))
        if case.kind == "work" and case.round != CONFIRMING and report.verdict != "missing":
            self._new.append(self._repeat(case, inside, report))
        said = Heard(report.auditor, report.verdict, report.digest())
        self._apply(case, cases.hear(case, said, self._facts.step))

    def _repeat(self, case: Case, inside: Weights, report: AuditReport) -> Drawable:
        """The report as something that may be repeated outside."""
        lease = self._rules.lease(self._terms, report.auditor)
        rate = economics.repeat_rate(
            self._rules.terms,
            value=economics.value(case.flops, lease.price),
            stake=lease.stake,
            waiting=self.docket.waiting(report.auditor, lease, self._facts.step),
        )
        name, step = report.digest(), self._facts.step
        again = Case(
            name, "report", report.auditor, case.stage, case.step, step, case.flops,
            case.work, case.worker, report.verdict, case.coin,
        )  # fmt: skip
        return Drawable(Repeat(name), rate, again, inside)

    # --------------------------------------------------------------------------------- the step

    def note_step(self) -> None:
        """What this seal holds may be drawn later; who earned what in it."""
        totals: Counter[PeerId] = Counter()
        for commit in self._facts.commits:
            flops = self._rules.spec.unit_flops[commit.stage] * commit.num_units
            totals[commit.peer] += flops
        self._new += self._peer_steps(totals)
        self._new += self._sums()
        is_awaited = any(each.awaits == self._facts.step for each, _ in self.docket.open.values())
        if self._new or is_awaited:
            undrawn = {**self.docket.undrawn, self._facts.step: tuple(self._new)}
            self.docket = replace(self.docket, undrawn=undrawn)
        self._note_earned()

    def _peer_steps(self, totals: Mapping[PeerId, int]) -> list[Drawable]:
        found, watched = [], dict(self.docket.watched)
        exposed: list[tuple[PeerId, Exposed]] = []
        for commit in self._facts.commits:
            inside = self._inside(commit.stage, commit.peer)
            name, peer = commit.digest(), commit.peer
            phi = self._largest_owner(inside)
            rate = economics.forced(
                self._rate(peer, Flops(totals[peer]), phi),
                above_gate=name in self._facts.above,
                since_unrepeated=watched.get(peer),
            )
            exposed.append((peer, Exposed(rate, phi)))
            if peer in watched:
                watched[peer] += 1
            flops = Flops(self._rules.spec.unit_flops[commit.stage] * commit.num_units)
            step = self._facts.step
            case = Case(name, "work", peer, commit.stage, step, step, flops, name, peer)
            found.append(Drawable(PeerStep(commit.stage, peer, commit.round), rate, case, inside))
        self.docket = replace(self.docket, watched=watched, exposed=tuple(exposed))
        return found

    def _sums(self) -> list[Drawable]:
        found, step = [], self._facts.step
        for chunk in self._facts.chunks:
            name = chunk.digest()
            peer, inside = chunk.peer, self._inside(chunk.stage, chunk.peer)
            case = Case(name, "sum", peer, chunk.stage, step, step, Flops(0), name, peer)
            subject = Chunk(chunk.stage, chunk.chunk)
            found.append(Drawable(subject, self._rules.terms.sums, case, inside))
        return found

    def _inside(self, stage: StageIndex, doer: PeerId) -> dict[PeerId, int]:
        """Peers of the stage and of other owners that worked in this step, by their units."""
        weights: Counter[PeerId] = Counter()
        for commit in self._facts.commits:
            if commit.stage == stage and self._owner(commit.peer) != self._owner(doer):
                weights[commit.peer] += commit.num_units
        return dict(weights)

    def _largest_owner(self, inside: Weights) -> Fraction | None:
        owners = Counter[Address]()
        for auditor, weight in inside.items():
            owners[self._owner(auditor)] += weight
        return economics.largest_owner(owners)

    def _rate(self, peer: PeerId, work: Flops, phi: Fraction | None) -> Fraction:
        lease = self._terms.leases[peer]
        return economics.rate(
            self._rules.terms,
            value=economics.value(work, lease.price),
            stake=stake_at_risk(peer, self._terms),
            waiting=self.docket.waiting(peer, lease, self._facts.step),
            power=self._rules.power(phi),
        )

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
                self._forfeit(ruling.peer, None)
                if case.kind == "report" and ruling.peer == case.doer:
                    self._reopen(case, inside)
            case "missing":
                self._forfeit(ruling.peer, None)
            case "unrepeated" if case.kind == "work":
                self.docket = replace(self.docket, watched={**self.docket.watched, case.doer: 0})

    def _reopen(self, case: Case, inside: Weights) -> None:
        """What a convicted auditor has reported on is audited once more, by the next coin."""
        if case.work in self.docket.open:
            return
        again = Case(
            case.work, "work", case.worker, case.stage, case.step, case.step, case.flops,
            case.work, case.worker, awaits=self._facts.step,
        )  # fmt: skip
        opened = {**self.docket.open, case.work: (again, inside)}
        self.docket = replace(self.docket, open=opened)

    def _forfeit(self, peer: PeerId, step: StepNumber | None) -> None:
        self._forfeits.append(Forfeit(peer, step))
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


def stake_at_risk(peer: PeerId, terms: Terms) -> BaseUnits:
    """S: what a conviction takes of a member's stake; nothing if its owner works next door.

    With a peer in a stage beside it, an owner may hold all copies of a boundary tensor, and can
    lose them when it is drawn: that costs waiting pay and no stake (see `economics`).
    """
    members, leases = terms.members, terms.leases
    stage, own = members.get(peer), leases[peer].account
    is_next_door = stage is not None and any(
        abs(other - stage) == 1 and leases[mate].account == own for mate, other in members.items()
    )
    return BaseUnits(0) if is_next_door else leases[peer].stake


def _open_since(docket: Docket) -> dict[PeerId, StepNumber]:
    """The first step of each peer whose draw is open; a conviction that is confirmed holds none."""
    found: dict[PeerId, StepNumber] = {}
    for case, _ in docket.open.values():
        if case.round != CONFIRMING:
            found[case.doer] = min(case.held_since, found.get(case.doer, case.held_since))
    return found


def _each_owner_once(
    peers: Iterable[PeerId], owner: Callable[[PeerId], Address]
) -> Iterator[PeerId]:
    """The first peer of each owner: several machines of one wallet are one auditor."""
    known = set[Address]()
    for peer in peers:
        if owner(peer) not in known:
            known.add(owner(peer))
            yield peer
