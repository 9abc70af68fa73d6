"""Which work a beacon draws, with which rate, and who audits it in which order. Pure.

B_t of a step comes from the beacon of the first batch that holds its seal. It depends on the job,
the step and the hash of the anchoring block, and not on what the seal says, so that variants of a
seal are useless. A beacon of zero was recorded after EIP-2935 forgot the block: then everything of
that batch is drawn.

Drawn iff PRF(B_t, name of the claim) < q, with the PRF as a 256-bit fraction and q as a rational,
so that everybody computes the same answer to the last bit. A name (`WorkClaim.draw_name`) has
nothing of a claim's content, which its peer could vary until it likes the draw. `MoneyAtRisk` gives
q: `economics` has the formulas; here they meet leases, the pay that waits and who works next door.
Coordinator and auditors reckon alike: the one hands out what q <= 1 covers, the others draw with q.
With `checking: off` q is zero and nobody is drawn, but every draw can be derived.

Nobody assigns auditors and everybody derives them: from the items of the drawn step, the leases,
the list of outside auditors, the convicts and the beacon. Who is said to have left since changes
nothing. They are ordered by drawing without replacement, each with a chance in proportion to its
weight. After a mismatch a quirk of one kind of device must not convict alone: the second auditor is
asked first among those on another device class than the first auditor's. That of the doer does not
matter, whose claim is what both are held against.

Invariant: auditors of a subject are of other owners than its doer, its worker and each other, and
of no convict's. Units: base units, model FLOPs. Source: docs/protocol.md 2, 4, 5 and 7.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice
from typing import TypeAlias

from contracts.governance.checking import Terms
from contracts.governance.pay import Lease
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import InvariantBroken, Refused
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    Digest,
    JobId,
    PeerId,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import count
from contracts.terms.messages import AuditSpec, JobSpec, class_name
from contracts.terms.work import WorkClaim
from verification.distances.thresholds import Calibration
from verification.draws import economics
from verification.draws.cases import (
    CONFIRMING,
    INSIDE,
    OUTSIDE,
    THIRD,
    Case,
    Heard,
    Kind,
    repeat_of,
)

# --------------------------------------------------------------------------------------- the beacon


def step_beacon(job: JobId, step: StepNumber, beacon: Digest) -> Digest | None:
    """B_t of `step`, or None where the beacon came too late and everything is drawn."""
    if beacon == ZERO_DIGEST:
        return None
    return digest("step beacon", job + step.to_bytes(8, "big") + beacon)


def ordering_beacon(job: JobId, step: StepNumber, beacon: Digest) -> Digest:
    """What orders the auditors of `step`, and seeds their replays: B_t, or a name known to all."""
    return step_beacon(job, step, beacon) or digest("late beacon", job + step.to_bytes(8, "big"))


# ----------------------------------------------------------------------------------- what it draws

_SCALE = 2**256


def again(subject: Digest, round: int) -> bytes:
    """What the PRF is taken of for a later round, of a subject that its first audits leave open."""
    return encode(["again", subject, round])


def prf(step_beacon: Digest, name: bytes) -> int:
    """A number below 2**256 that nobody knew before the beacon."""
    return int.from_bytes(digest("draw", step_beacon + name), "big")


def is_drawn(step_beacon: Digest | None, name: bytes, rate: Fraction) -> bool:
    """Whether what has this name is drawn at probability `rate`; a late beacon draws all.

    At rate 0 nothing is drawn whatever the beacon, at rate 1 or more everything.
    """
    if rate <= 0:
        return False
    if step_beacon is None:
        return True
    return prf(step_beacon, name) * rate.denominator < rate.numerator * _SCALE


def auditor_order(
    step_beacon: Digest, name: bytes, weights: Mapping[PeerId, int]
) -> Iterator[PeerId]:
    """All candidates, the first to audit first; each costs its draw only once it is asked for.

    Args:
        step_beacon: B_t of the subject's step; of a later step for a second auditor.
        name: Of what is audited, or `again`.
        weights: Eligible auditors and their positive weights (items in the same seal, or stake).

    Raises:
        InvariantBroken: a weight is not positive.
    """
    if any(weight <= 0 for weight in weights.values()):
        raise InvariantBroken("an auditor's weight must be positive")
    remaining = dict(sorted(weights.items()))
    for place in range(len(weights)):
        peer = _pick(prf(step_beacon, name + encode(["auditor", place])), remaining)
        del remaining[peer]
        yield peer


def _pick(number: int, weights: Mapping[PeerId, int]) -> PeerId:
    """The candidate whose part of the total weight holds `number` / 2**256."""
    at = number * sum(weights.values()) // _SCALE
    for peer, weight in weights.items():
        if at < weight:
            return peer
        at -= weight
    raise InvariantBroken("a fraction of the total weight lies beyond it")


# --------------------------------------------------------------------- what never changes in a job


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
        flops = sum(self.spec.item_flops) * self.spec.batch.units_per_step
        return economics.audits_at_once(self.terms, flops)

    def audits_of(self, case: Case) -> int:
        """FLOPs of the audits that a case may need; a report is repeated once."""
        if case.kind == "report":
            return case.flops
        return economics.audits_at_once(self.terms, case.flops)


def rules_of(spec: JobSpec, outside: AuditorList, table: Calibration) -> Rules:
    """The rules of a job whose spec has an audit.

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
    return Rules(spec.job(), spec, audit, table, leases)


# ----------------------------------------------------------------------------------- who may audit

Weights: TypeAlias = Mapping[PeerId, int]


@dataclass(frozen=True)
class Candidates:
    """Whom a seal may ask to audit."""

    rules: Rules
    terms: Terms
    convicts: frozenset[PeerId]

    def of_stage(
        self, stage: StageIndex, doer: PeerId, claims: Sequence[WorkClaim]
    ) -> dict[PeerId, int]:
        """Peers of the stage and of other owners with work in the same seal, by their items."""
        weights: Counter[PeerId] = Counter()
        for claim in claims:
            if claim.group == stage and self._owner(claim.peer) != self._owner(doer):
                weights[claim.peer] += count(claim.items)
        return dict(weights)

    def largest_owner(self, inside: Weights) -> Fraction | None:
        """Phi: the largest owner's part of those who may audit; None if there is nobody."""
        owners = Counter[Address]()
        for auditor, weight in inside.items():
            owners[self._owner(auditor)] += weight
        return economics.largest_owner(owners)

    def order(self, case: Case, name: bytes, inside: Weights, beacon: Digest) -> tuple[PeerId, ...]:
        """Auditors of a round: of the stage first, then of all that is staked.

        In a dispute those on another device class come first, in the stage and outside.
        """
        heard = (each.auditor for each in case.heard)
        taken = {self._owner(peer) for peer in (case.doer, case.worker, *heard)}
        far = {p: each.stake for p, each in self.rules.outside.items() if self._fits(p, taken)}
        near = {peer: items for peer, items in inside.items() if self._fits(peer, taken)}
        if case.round == CONFIRMING or case.kind == "report" or (case.round == THIRD and far):
            near = {}  # two owners of a stage must not outvote an honest one there
        inner = _each_owner_once(self._in_turn(case, name, near, beacon), self._owner)
        first = tuple(islice(inner, INSIDE))
        owners = {self._owner(peer) for peer in first}
        in_turn = self._in_turn(case, name, far, beacon)
        outer = (peer for peer in in_turn if self._owner(peer) not in owners)
        return (*first, *islice(outer, OUTSIDE))

    def _in_turn(
        self, case: Case, name: bytes, weights: Weights, beacon: Digest
    ) -> Iterator[PeerId]:
        apart = self._classes_apart(case)
        sought = {p: weight for p, weight in weights.items() if self._class(p) in apart}
        others = {p: weight for p, weight in weights.items() if p not in sought}
        return chain(auditor_order(beacon, name, sought), auditor_order(beacon, name, others))

    def _classes_apart(self, case: Case) -> frozenset[str]:
        """Device classes that a second auditor of a dispute shall be of; none in other rounds.

        Only those from which a verdict can follow: a report of another one would never count. Who
        decides between two that contradict each other is not to be chosen by choosing a device.
        """
        if case.accuser is None:
            return frozenset()
        claimed = (self._class(case.worker), self._class(case.doer))
        return frozenset(
            each
            for each in self.rules.table.classes
            if each != self._class(case.accuser)
            and all(self.rules.table.holds(each, other) for other in claimed)
        )

    def _fits(self, peer: PeerId, taken: set[Address]) -> bool:
        owner = self._owner(peer)
        if not self.rules.audit.admits(self._class(peer)):
            return False
        # A friend who was convicted must not come back as another machine of the same wallet.
        return owner not in taken and owner not in map(self._owner, self.convicts)

    def _owner(self, peer: PeerId) -> Address:
        return self.rules.lease(self.terms, peer).account

    def _class(self, peer: PeerId) -> str:
        return class_name(self.rules.lease(self.terms, peer).device_class)


def _each_owner_once(
    peers: Iterable[PeerId], owner: Callable[[PeerId], Address]
) -> Iterator[PeerId]:
    """The first peer of each owner: several machines of one wallet are one auditor."""
    known = set[Address]()
    for peer in peers:
        if owner(peer) not in known:
            known.add(owner(peer))
            yield peer


# --------------------------------------------------------------------------------------- how often


@dataclass(frozen=True)
class MoneyAtRisk:
    """Of everybody who works or audits, as of one step."""

    rules: Rules
    terms: Terms
    step: StepNumber
    earned: Mapping[PeerId, Mapping[StepNumber, Flops]]  # recently
    frozen: frozenset[PeerId]

    def rate(self, peer: PeerId, work: Flops, phi: Fraction | None) -> Fraction:
        """q of a peer-step: the chance with which it is drawn."""
        lease = self.terms.leases[peer]
        return economics.rate(
            self.rules.terms,
            value=economics.value(work, lease.price),
            stake=self._stake(peer),
            waiting=self._waiting(peer, lease),
            power=self.rules.power(phi),
        )

    def repeat_rate(self, auditor: PeerId, work: Flops) -> Fraction:
        """The chance with which a report on so much work is repeated outside."""
        lease = self.rules.lease(self.terms, auditor)
        return economics.repeat_rate(
            self.rules.terms,
            value=economics.value(work, lease.price),
            stake=lease.stake,
            waiting=self._waiting(auditor, lease),
        )

    def most_units(self, stage: StageIndex, expected: Weights) -> Mapping[PeerId, int]:
        """See `Checking.most_units`."""
        owners = {peer: self.terms.leases[peer].account for peer in expected}
        found = {}
        for peer, own in owners.items():
            others = Counter[Address]()
            for mate, units in expected.items():
                if owners[mate] != own and units:
                    others[owners[mate]] += units
            phi = economics.largest_owner(others)
            work = economics.most_work(self._most_value(peer, phi), self.terms.leases[peer].price)
            found[peer] = work // self.rules.spec.item_flops[stage]
        return found

    def _most_value(self, peer: PeerId, phi: Fraction | None) -> BaseUnits:
        return economics.most_value(
            self.rules.terms,
            stake=self._stake(peer),
            waiting=self._waiting(peer, self.terms.leases[peer]),
            power=self.rules.power(phi),
        )

    def _waiting(self, peer: PeerId, lease: Lease) -> BaseUnits:
        """U: what a peer earned in the W steps before this one and is not frozen."""
        if peer in self.frozen:
            return BaseUnits(0)
        recent = self.earned.get(peer, {})
        window = self.rules.terms.window
        return economics.waiting(recent, lease.price, step=self.step, window=window)

    def _stake(self, peer: PeerId) -> BaseUnits:
        """S: what a conviction takes of a member's stake; nothing if its owner works next door.

        With a peer in a stage beside it, an owner may hold all copies of a boundary tensor, and can
        lose them when it is drawn: that costs waiting pay and no stake (see `economics`).
        """
        members, leases = self.terms.members, self.terms.leases
        stage, own = members.get(peer), leases[peer].account
        is_next_door = stage is not None and any(
            abs(other - stage) == 1 and leases[mate].account == own
            for mate, other in members.items()
        )
        return BaseUnits(0) if is_next_door else leases[peer].stake


# ------------------------------------------------------------------------------- what a seal holds


@dataclass(frozen=True)
class Drawable:
    """A claim that the beacon of its seal may draw."""

    name: bytes  # what the PRF is taken of
    rate: Fraction
    case: Case  # as it begins
    inside: Weights  # who of the stage may audit it


def drawable(
    claim: WorkClaim, flops: Flops, rate: Fraction, inside: Weights, seal: StepNumber
) -> Drawable:
    """Work of so many FLOPs, or a bucket, which costs none to do again, that `seal` holds."""
    name, peer = claim.digest(), claim.peer
    kind: Kind = "bucket" if claim.what == "bucket" else "work"
    case = Case(name, kind, peer, claim.group, claim.round, seal, flops, name, peer)
    return Drawable(claim.draw_name(), rate, case, inside)


def repeat(
    report: WorkClaim, said: Heard, case: Case, rate: Fraction, inside: Weights, seal: StepNumber
) -> Drawable:
    """The report on `case` that `seal` holds, as something that may be repeated outside."""
    return Drawable(report.draw_name(), rate, repeat_of(case, said, seal), inside)
