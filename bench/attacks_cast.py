"""The attacks of docs/threat-model.md, one a row of the table, and how each has to end.

A `Run` is what a job on which one was played says of itself: its sealed history, all of it checked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, Literal, TypeAlias

from contracts.governance.job import JobHistory, follow
from contracts.governance.rounds import claims_of, of_kind
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, JobId, PeerId
from contracts.terms.items import ItemNumber, count
from contracts.terms.messages import JobSpec, Message, Seal
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from contracts.terms.work import RoundClosed, WorkClaim
from tallystick.demo.shares import JobWork, read_work
from tallystick.gym.plan import parse
from tallystick.sdk.submit import Submitted
from tests.support.stack import ASK
from training.coordinator.caps import OWNER_CAP
from verification.docket import Docket, begin_job
from verification.draws.cases import Ruling

Outcome = Literal["convicted", "missing", "harmless"]
LIAR, MATE = "liar", "mate"


@dataclass(frozen=True)
class Run:
    """A job that was played to its end, and what its sealed history establishes."""

    job: JobId
    spec: JobSpec
    work: JobWork
    names: Mapping[Address, str]  # roles, and who audits outside
    owners: Mapping[PeerId, Address]  # of members and outside auditors
    all_rulings: tuple[Ruling, ...]
    messages: tuple[Message, ...]

    @classmethod
    def read(
        cls, about: Submitted, items: Sequence[Kept], domain: Domain, names: Mapping[Address, str]
    ) -> "Run":
        """Everything that a finished job's history says, with every message checked."""
        history, rulings, messages = JobHistory(domain, begin_job), list[Ruling](), list[Message]()
        for item in items:
            history = follow(history, item)
            if isinstance(item, Signed):
                messages.append(item.message)
                checking = history.record.checking if history.record else None
                if isinstance(item.message, Seal) and isinstance(checking, Docket):
                    rulings += checking.rulings
        assert history.record is not None  # it was opened
        owners = {peer: lease.account for peer, lease in history.record.pay_leases().items()}
        work = read_work(items, domain)
        return cls(about.job, about.spec, work, names, owners, tuple(rulings), tuple(messages))

    def _is(self, peer: PeerId, role: str) -> bool:
        return self.names.get(self.owners[peer]) == role

    @property
    def work_claims(self) -> list[WorkClaim]:
        """What everybody claims to have done."""
        return claims_of(self.messages, "work")

    def step_of(self, subject: Digest) -> int:
        """Of the work or the bucket that a ruling is about, directly or by a report on it."""
        claims = of_kind(self.messages, WorkClaim)
        return next(each.round for each in claims if each.digest() == subject)

    def claims_of(self, role: str) -> list[WorkClaim]:
        """The peer-steps of one of the cast."""
        return [each for each in self.work_claims if self._is(each.peer, role)]

    def weight_of(self, claim: WorkClaim) -> Fraction:
        """Of a sample of its gradient in the mean, beside that which weighs most of its stage."""
        of_stage = {each.digest(): each for each in self.work_claims if each.group == claim.group}
        for closed in reversed(of_kind(self.messages, RoundClosed)):
            weights = {
                name: Fraction(weight, count(of_stage[name].items))
                for name, weight in closed.claims
                if name in of_stage
            }
            if claim.digest() in weights:
                return weights[claim.digest()] / max(weights.values())
        return Fraction(0)  # it is in no mean

    def items_of(self, role: str) -> frozenset[ItemNumber]:
        """Items that one of the cast claims."""
        return frozenset(item for each in self.claims_of(role) for item in each.numbers)

    def earned(self, role: str) -> int:
        """When the job ended: after forfeits."""
        own = [who for who in self.work.pay if self.names.get(who) == role]
        lost = self.work.forfeited
        return sum(self.work.pay[who].earned - lost.get(who, 0) for who in own)

    @property
    def forfeited(self) -> int:
        """By everybody."""
        return sum(self.work.forfeited.values())

    def are_neighbours(self, one: str, other: str) -> bool:
        """Whether two of the cast handed tensors to each other."""
        is_same_item = not self.items_of(one).isdisjoint(self.items_of(other))
        return self.stage(one) != self.stage(other) and is_same_item

    def stage(self, role: str) -> int:
        """That it worked in."""
        workers = self.work.workers.values()
        return next(each.stage for each in workers if self.names.get(each.account) == role)

    def rulings(self, what: str, role: str) -> list[Ruling]:
        """About one of the cast, the first seal first."""
        found = [each for each in self.all_rulings if each.what == what]
        own = [each for each in found if self._is(each.peer, role)]
        return sorted(own, key=lambda each: (each.step, self.step_of(each.subject)))

    def outcome(self, role: str) -> Outcome:
        """What became of one of the cast."""
        if self.rulings("convicted", role):
            return "convicted"
        return "missing" if self.rulings("missing", role) else "harmless"

    def by(self, ruling: Ruling) -> tuple[str, ...]:
        """Names of who was heard."""
        return tuple(self.names[self.owners[peer]] for peer in ruling.by)


Seen: TypeAlias = tuple[str, bool]
"""What an attack showed beside its outcome, and whether it had to."""


@dataclass(frozen=True)
class Shape:
    """What attacks have in common that can be compared with one honest run."""

    steps: int = 6
    units: int = 9
    stages: int = 1
    owners: int = 3  # of a stage
    slowdown: float = 1.0  # of all machines
    repeats: float = 0.0  # of reports, from outside

    @property
    def roles(self) -> tuple[str, ...]:
        """Who takes part; liar and mate are honest where no attack says otherwise."""
        leads = (LIAR, MATE)[: self.stages]
        others = ("ann", "bob", "cem", "dan")
        return (*leads, *others[: self.stages * self.owners - len(leads)])


USUAL = Shape()
LONG = Shape(steps=28)  # the norm gate closes after 25
# Two owners need strangers; an odd number of units, or each has the same neighbour in all of them.
NEIGHBOURS = Shape(units=9, stages=2, owners=2, repeats=1.0)
CROWD = Shape(steps=4, units=20, owners=5, slowdown=20.0)  # five owners: the quarter holds


# ---------------------------------------------------------------------- what has to be seen besides


def _lies(attack: "Attack", run: Run) -> list[WorkClaim]:
    """The liar's peer-steps while its lie lasts."""
    return [each for each in run.claims_of(LIAR) if each.round in attack.lied]


def _gated(attack: "Attack", run: Run) -> Seen:
    lies = [each for each in _lies(attack, run) if each.round == attack.lied[0]]
    weight = max(map(run.weight_of, lies), default=Fraction(0))
    return f"weighs {float(weight):.4f}", 0 < weight < Fraction(1, 10)


def _not_averaged(attack: "Attack", run: Run) -> Seen:
    lies = _lies(attack, run)
    return "in no mean", bool(lies) and not any(map(run.weight_of, lies))


def _no_units(attack: "Attack", run: Run) -> Seen:
    units = sum(count(each.items) for each in _lies(attack, run))
    return f"{units} units in steps {attack.lied[0]} to {attack.lied[-1]}", units == 0


def _redone(attack: "Attack", run: Run) -> Seen:
    step, stage = attack.lied[0], run.stage(LIAR)
    claims = [each for each in run.work_claims if (each.round, each.group) == (step, stage)]
    is_whole = sum(count(each.items) for each in claims) == attack.shape.units
    return f"step {step} done again by others", is_whole and not _lies(attack, run)


def _capped(attack: "Attack", run: Run) -> Seen:
    cap = ceil(OWNER_CAP * attack.shape.units)
    most = max(count(each.items) for each in run.claims_of(LIAR))
    return f"{most} of {attack.shape.units} units at most", most <= cap


# ------------------------------------------------------------------------------------- the attacks


@dataclass(frozen=True)
class Attack:
    """One row of the table, and how it has to end."""

    name: str
    about: str
    lie: str  # of `liar`, as `tallystick.gym.registry` reads it
    expected: Outcome = "convicted"
    shape: Shape = USUAL
    mate: str = ""  # what `mate` plays, in the other stage
    changes: Mapping[str, object] = field(default_factory=dict)  # of the job
    moves: bool = True  # whether numbers are falsified that the model is made of
    also: Callable[["Attack", Run], Seen] | None = None

    @property
    def liars(self) -> tuple[str, ...]:
        """Roles that lie."""
        return (LIAR, MATE) if self.mate else (LIAR,)

    @property
    def behaviours(self) -> Mapping[str, str]:
        """By role."""
        return {LIAR: self.lie, MATE: self.mate}

    @property
    def lied(self) -> range:
        """Steps in which the first of its lies is told."""
        plan = parse(self.lie.split("+")[0])[1]
        return range(plan.first, 1 + (self.shape.steps if plan.last is None else plan.last))


REPEATED = {"repeat_rate": 1.0}
IMPATIENT = {"exchange_timeout": "6s"}  # a step waits that long for parts that nobody can add

ATTACKS = (
    Attack("copied", "one unit computed and copied", "copied:from=2"),
    Attack("stale", "stale results", "stale:from=2"),
    Attack("skipped", "skipped units", "skipped:from=2"),
    Attack("half", "half the tokens, rescaled", "half:from=2,share=1/2"),
    Attack("flipped", "1 % of signs flipped", "flipped:from=2"),
    Attack("scaled", "gradient x1.01", "scaled:from=2"),
    Attack("coarse", "int8 weights", "coarse:from=2"),
    Attack("turned", "honest activations, wrong gradient", "turned:from=2"),
    Attack("huge", "huge norm for one step, among the first 25", "huge:from=2"),
    Attack("wrong_sum", "wrong sum", "wrong_sum:from=2"),
    Attack("left_out", "a part left out of a sum", "left_out:from=2"),
    Attack("leaving", "cheat and leave the job", "turned:from=2,until=2+leaving:from=2"),
    Attack("accuser", "false accusation", "accuser:from=2", changes=REPEATED, moves=False),
    Attack("stamp", "rubber-stamped audits", "stamp", changes=REPEATED, moves=False),
    Attack("friend", "claims from a friend", "friend", changes=REPEATED, moves=False),
    Attack(
        "not_finite_parts",
        "NaN in the gradient",
        "not_finite_parts:from=2,until=3",
        changes=IMPATIENT,
        moves=False,
        also=_not_averaged,
    ),
    Attack(
        "oversized_parts",
        "gradient twice as long",
        "oversized_parts:from=2,until=3",
        changes=IMPATIENT,
        moves=False,
        also=_not_averaged,
    ),
    Attack("gated", "huge norm for one step, later", "huge:from=27", shape=LONG, also=_gated),
    Attack(
        "withheld",
        "data withheld when drawn, alone",
        "withheld",
        "harmless",
        NEIGHBOURS,
        moves=False,
    ),
    Attack(
        "withheld_together",
        "data withheld with a neighbour",
        "withheld",
        "missing",
        NEIGHBOURS,
        mate="withheld",
        moves=False,
    ),
    Attack(
        "stalling",
        "stale results, and auditors wait for an answer",
        "stale:from=2+stalling:from=2",
        shape=NEIGHBOURS,
    ),
    Attack(
        "vanishing",
        "junk, then leave before its claim",
        "junk:from=3+vanishing:from=3",
        "harmless",  # to pay: the junk is paid to nobody
        NEIGHBOURS,
        also=_redone,
    ),
    Attack(
        "not_finite",
        "NaN tensors",
        "not_finite:from=2,until=3",
        "harmless",
        NEIGHBOURS,
        moves=False,
        also=_no_units,
    ),
    Attack(
        "oversized",
        "oversized tensors",
        "oversized:from=2,until=3",
        "harmless",
        NEIGHBOURS,
        moves=False,
        also=_no_units,
    ),
    Attack("junk", "junk at 20 x speed", "junk:from=2", shape=CROWD, also=_capped),
)


def job_of(shape: Shape, seed: int, *, is_checked: bool) -> dict[str, Any]:
    """What is posted."""
    return {
        "name": "attacks",
        "data_seed": seed,
        "model": {"init_seed": seed},
        "steps": shape.steps,
        "stages": shape.stages,
        "peers_per_stage": shape.owners,
        "units_per_step": shape.units,
        "budget": 200,
        "min_stake": 5,  # so much more than a step's pay that money at risk draws no repeats
        "price_ceiling": int(ASK),
        "vesting_window": 2,
        "commit_timeout": "20s",
        "exchange_timeout": "20s",
        "lease_grace": "5s",
        "checking": "on" if is_checked else "off",
        "audit_rate": 1.0,
        "sum_audit_rate": 1.0,
        "repeat_rate": shape.repeats,
    }
