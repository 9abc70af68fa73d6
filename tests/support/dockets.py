"""A checked job in a test: who works, who may audit, and seals that say little else.

Nothing is signed here: a docket reads messages whose signatures were checked before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

from contracts.governance.checking import Reported, RoundFacts, Standing, Terms
from contracts.governance.pay import Lease
from contracts.governance.rounds import flops_of
from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import MILLION, AuditSpec, JobSpec, Notice, StepBeacon
from contracts.terms.work import Output, Verdict, WhatField, WorkClaim, findings_of
from tests.support.history import (
    MODEL,
    make_claim,
    make_digest,
    make_session,
    make_spec,
    make_wallet,
    outside_auditors,
    report_claim,
)
from verification import docket as dockets
from verification.distances.thresholds import (
    MEASURES,
    Calibration,
    PairThresholds,
    distance_name,
    stage_kinds,
)
from verification.docket import Docket
from verification.draws.cases import Case
from verification.verdicts import PROJECTIONS

CLASS, OTHER_CLASS = "a device", "another device"
LIMIT = 1000
STAGE = StageIndex(0)
UNTIED = MODEL.model_copy(update={"tied_head": False})
ITEM_FLOPS = Flops(10**15)
"""So that an item is worth its lease's price."""


def calibration() -> Calibration:
    """A table of two device classes that allows every distance up to `LIMIT`."""
    kinds = {
        kind
        for first in (True, False)
        for last in (True, False)
        for tied in (True, False)
        for kind in stage_kinds(is_first=first, is_last=last, tied_head=tied)
    }
    limits = {f"{kind}/none": (LIMIT,) * len(MEASURES) for kind in kinds}
    pairs = tuple(
        PairThresholds(dtype="float32", classes=classes, limits=limits)  # type: ignore[arg-type]
        for classes in combinations_with_replacement((CLASS, OTHER_CLASS), 2)
    )
    return Calibration(samples="none", comparisons=0, measures=MEASURES, pairs=pairs)


def begin_checked(spec: JobSpec, outside: AuditorList) -> Docket:
    """The docket of a job that names the table of `calibration`."""
    return dockets.begin(spec, outside, calibration())


def audit_spec(**changed: Any) -> AuditSpec:
    """Everything is drawn and nothing repeated, unless changed."""
    values: dict[str, Any] = {
        "floor": MILLION, "sums": 0, "repeats": 0, "margin": MILLION, "detection": MILLION,
        "deadline": 2, "thresholds": calibration().digest(), "price": PricePerPflop(1),
        "budget": BaseUnits(10**12), "device_class": "",
    }  # fmt: skip
    return AuditSpec(**(values | changed))


def checked_spec(audit: AuditSpec, **changed: Any) -> JobSpec:
    """A job of one stage."""
    return make_spec(
        audit=audit,
        item_flops=(ITEM_FLOPS,),
        **({"model": UNTIED} | changed),
    )


def peer(name: str) -> PeerId:
    """The id of somebody's session key."""
    return make_session(name).peer


@dataclass
class CheckedJob:
    """Grows by `seal`. Workers are (name, owner), the owner by default the name itself."""

    workers: Sequence[str] = ("ann", "bob", "cem")
    owners: Mapping[str, str] = field(default_factory=dict)
    outside: Sequence[str] = ("out", "oda", "olu")
    price: int = 1000
    stake: int = 10**9
    audit: AuditSpec = field(default_factory=audit_spec)
    rules: Mapping[str, Any] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)  # of devices; by default `CLASS`

    def __post_init__(self) -> None:
        spec = checked_spec(self.audit, **self.rules)
        listed = outside_auditors(
            self.outside, device_class=CLASS, stake=self.stake, classes=self.classes
        )
        self.spec = spec
        self.docket: Docket = dockets.begin(spec, listed, calibration())
        self.leases = {
            peer(name): Lease(
                make_wallet(self.owners.get(name, name)).account,
                PricePerPflop(self.price),
                BaseUnits(self.stake),
                self.classes.get(name, CLASS),
            )
            for name in self.workers
        } | dict(self.docket.rules.outside)
        self.members = {peer(name): STAGE for name in self.workers}
        self.step = StepNumber(0)
        self.standing: Standing | None = None

    @property
    def rulings(self) -> list[tuple[str, str]]:
        """What the newest seal decided about whom."""
        return [(each.what, self.name_of(each.peer)) for each in self.docket.rulings]

    def name_of(self, wanted: PeerId) -> str:
        """Somebody's name."""
        return next(n for n in (*self.workers, *self.outside) if peer(n) == wanted)

    def commit(self, name: str, units: int = 2, **changed: Any) -> WorkClaim:
        """A claim of work of the next step."""
        return self._claim(
            name,
            "work",
            base=make_digest("base"),
            items=((0, units),),
            leaves=make_digest(name),
            **changed,
        )

    def chunk(self, name: str) -> WorkClaim:
        """The claim of a bucket of the next step."""
        return self._claim(name, "bucket", subject=make_digest("round", self.step + 1))

    def _claim(self, name: str, what: WhatField, **changed: Any) -> WorkClaim:
        values: dict[str, Any] = {
            "job": self.spec.job(),
            "peer": peer(name),
            "previous": make_digest("seal", self.step),
            "round": StepNumber(self.step + 1),
            "outputs": (Output(bucket=ChunkIndex(0), digest=ZERO_DIGEST, norm_squared=1),),
        }
        return make_claim(what, **(values | changed))

    def beacon(self, of: int, value: Digest | None = None, *, is_served: bool = True) -> StepBeacon:
        """The beacon of a step, in the next seal; of a batch whose list is served, or is not."""
        return StepBeacon(
            job=self.spec.job(),
            step=StepNumber(self.step + 1),
            of=StepNumber(of),
            batch=make_digest("batch", of) if is_served else ZERO_DIGEST,
            block=of,
            beacon=make_digest(f"beacon {of}") if value is None else value,
        )

    def notice(self, what: Any, name: str, evidence: Digest = ZERO_DIGEST) -> Notice:
        """A Notice in the next seal."""
        return Notice(
            job=self.spec.job(),
            step=StepNumber(self.step + 1),
            number=self.step,
            what=what,
            peer=peer(name),
            stage=STAGE,
            address="",
            evidence=evidence,
        )

    def report(
        self, case: Case, verdict: Verdict, by: str | None = None, **changed: Any
    ) -> Reported:
        """What the present auditor, or somebody else, says of a case.

        Args:
            case: What it is about.
            verdict: What it found.
            by: Somebody's name; None: the present auditor.
            changed: Fields of the claim, or `distances`: integers in the order of their names.
        """
        auditor = peer(by) if by else case.auditor
        assert auditor is not None
        says_nothing = verdict == "missing" or case.is_of_sum
        distances = () if says_nothing else distances_of(case.stage, self.spec, verdict)
        about: dict[str, Any] = {
            "round": case.step, "group": case.stage,
            "subject": case.subject, "attempt": case.attempt,
        }  # fmt: skip
        distances = changed.pop("distances", distances)
        claim, leaf = report_claim(
            self.spec.job(), auditor, verdict, distances, **(about | changed)
        )
        return Reported(claim, findings_of([leaf]))

    def case_of(self, name: str) -> Case:
        """The one open case of somebody's message."""
        found = [case for case, _ in self.docket.open.values() if case.doer == peer(name)]
        assert len(found) == 1, f"{len(found)} open cases"
        return found[0]

    def seal(
        self,
        *said: Any,
        above: Iterable[WorkClaim] = (),
        last: bool = False,
    ) -> Standing:
        """The next seal over these messages; work that it holds is paid."""
        claims = [each for each in said if isinstance(each, WorkClaim)]
        done = [each for each in claims if each.what == "work"]
        work: dict[PeerId, Flops] = {}
        for each in done:
            work[each.peer] = Flops(work.get(each.peer, 0) + flops_of(self.spec, each))
        facts = RoundFacts(
            step=StepNumber(self.step + 1),
            claims=done,
            buckets=[each for each in claims if each.what == "bucket"],
            work=work,
            above=frozenset(each.digest() for each in above),
            beacons=[each for each in said if isinstance(each, StepBeacon)],
            reports=[each for each in said if isinstance(each, Reported)],
            notices=[each for each in said if isinstance(each, Notice)],
            last=last,
        )
        terms = Terms(self.spec, self.leases, self.members)
        self.docket, standing = self.docket.after(facts, terms)
        self.step = facts.step
        self.standing = standing
        gone = {n.peer for n in facts.notices if n.what in ("leave", "suspension")}
        self.members = {p: stage for p, stage in self.members.items() if p not in gone}
        return standing


def distances_of(
    stage: StageIndex, spec: JobSpec, verdict: Verdict, *, projections: int | None = None
) -> tuple[int, ...]:
    """Distances of a stage that `verdict` follows from, in the order of their names.

    `projections`: of a report on a report, how far these lie apart.
    """
    value = LIMIT if verdict == "match" else LIMIT + 1
    is_last, tied = stage == spec.batch.stages - 1, spec.model.tied_head
    kinds = stage_kinds(is_first=stage == 0, is_last=is_last, tied_head=tied)
    found = {distance_name(kind, measure): value for kind in kinds for measure in MEASURES}
    if projections is not None:
        found[PROJECTIONS] = projections
    return tuple(distance for _, distance in sorted(found.items()))
