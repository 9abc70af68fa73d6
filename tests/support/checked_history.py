"""A made-up checked job with real keys, whose seals are anchored one by one on a made-up chain.

Everything is drawn. From step `LIE_FROM` on bob's work is wrong; whoever is asked says what is so,
but for one auditor who is silent, and one tensor of cem that is missing at first. So a history has
matches, a mismatch and its confirmation from outside, a conviction, a suspension, a missed report
and missing data, whatever the beacons. A forger tells another story with the same keys (`Twist`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeAlias

from contracts.governance.anchor_chain import AnchoredBatch
from contracts.governance.checking import Begin
from contracts.keys.wallet import Session
from contracts.terms.amounts import PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.merkle import batch_leaf, root
from contracts.terms.messages import AuditSpec, Message, Notice, StepBeacon
from contracts.terms.work import Leaf, Verdict, WorkClaim
from tests.support.dockets import CLASS, audit_spec, begin_checked, distances_of
from tests.support.history import (
    JobMaker,
    Member,
    Report,
    make_digest,
    make_members,
    make_session,
    outside_auditors,
    report_claim,
)
from verification.docket import Docket
from verification.draws.anchor_chains import Entry
from verification.draws.cases import Case

PRICE = PricePerPflop(900_000)
WORK_STEPS = 3
LIE_FROM = 2
ANN, BOB, CEM = range(3)


def make_auditors(names: Iterable[str]) -> AuditorList:
    """Staked accounts outside the job."""
    return outside_auditors(names, device_class=CLASS, stake=2_000_000)


Said: TypeAlias = list[Message | Report]
"""What stands under a seal beside the work: beacons, Notices, reports with their leaf."""


@dataclass(frozen=True)
class Twist:
    """Where a story departs from what is so."""

    begin: Begin = begin_checked  # by which its tellers fold draws
    said: "Callable[[CheckedMaker, Said], Said] | None" = None
    outside: tuple[str, ...] = ("out", "oda")


HONEST = Twist()


class Anchoring(Protocol):
    """Who puts seals on a chain: here nobody, in `audited` a whole market."""

    @property
    def anchor_chain(self) -> Sequence[tuple[AnchoredBatch, tuple[Entry, ...]]]:
        """All batches with their beacons, oldest first."""

    def open(self, maker: JobMaker) -> object:
        """A job begins."""

    def anchor(self) -> object:
        """Anchor all seals that no batch holds, and draw the beacon."""


@dataclass
class MadeUpAnchorChain:
    """Anchors of one job, whose beacons are made up."""

    anchor_chain: list[tuple[AnchoredBatch, tuple[Entry, ...]]] = field(default_factory=list)

    def open(self, maker: JobMaker) -> None:
        """See `Anchoring.open`."""
        self._maker = maker

    def anchor(self) -> None:
        """See `Anchoring.anchor`."""
        seal = self._maker.seals[-1].seal
        entry, block = (seal.job, int(seal.step), seal.digest()), 2 + 2 * len(self.anchor_chain)
        name = root([batch_leaf(*entry)])
        batch = AnchoredBatch(name, block, make_digest("beacon", seal.digest()))
        self.anchor_chain.append((batch, (entry,)))


@dataclass
class CheckedMaker(JobMaker):
    """Grows by `next_seal`; `market` anchors each seal, so that the next can hold its beacon."""

    market: Anchoring = field(default_factory=MadeUpAnchorChain)
    twist: Twist = HONEST
    audit: AuditSpec = field(default_factory=lambda: audit_spec(deadline=2, price=PRICE))

    def __post_init__(self) -> None:
        self.spec_changes = {"audit": self.audit}
        self.device_class, self.begin = CLASS, self.twist.begin
        self.outside = make_auditors(self.twist.outside)
        self.sessions: dict[PeerId, Session] = {
            session.peer: session for session in map(make_session, ("out", "oda", "olu"))
        } | {member.session.peer: member.session for member in self.members}
        self._held: dict[PeerId, tuple[Digest, ...]] = {}
        super().__post_init__()
        self.market.open(self)

    @property
    def docket(self) -> Docket:
        """What became of the draws so far."""
        assert isinstance(self.record.checking, Docket)
        return self.record.checking

    def peer(self, number: int) -> PeerId:
        """The peer of a member."""
        return self.members[number].session.peer

    def run(self) -> None:
        """The whole job: work, empty steps until nothing is open, the last seal."""
        for _ in range(WORK_STEPS):
            self.next_seal()
        while not self.docket.is_clear:
            self.next_seal(works=False)
            assert self.record.step < 40, "the draws of this story never end"
        self.next_seal(works=False, last=True)

    def next_seal(self, *, works: bool = True, last: bool = False) -> None:
        """One more step, sealed and anchored."""
        said: Said = [*self.beacons(), *self.notices_due(), *self.reports()]
        if self.twist.said is not None:
            said = self.twist.said(self, said)
        self._held = by_auditor(said)
        items = [item for each in said for item in self.kept(each)]
        if works:
            items += self.step_items()
        self.seal(items, last=last)
        self.market.anchor()

    def kept(self, said: Message | Report) -> list[Kept]:
        """A message with the signature of whom it binds; a report is followed by its leaf."""
        if isinstance(said, Message):
            return [self.session.sign(said)]
        claim, leaf = said
        return [self.sessions[claim.peer].sign(claim), Leaves(claim.digest(), (leaf,))]

    def working(self) -> Sequence[Member]:
        """Members that are not convicted; everybody in the first step."""
        gone, present = self.docket.convicts, self.record.members
        return [
            member
            for member in self.members
            if member.session.peer not in gone
            and (member.session.peer in present or not self.record.step)
        ]

    def notices(self) -> list[Notice]:
        """Said by `notices_due`."""
        return []

    # ------------------------------------------------------------------------- beside the work

    def beacons(self) -> list[StepBeacon]:
        """The beacons of the anchor chain for all steps that wait for theirs."""
        return [self.beacon(step) for step in self.docket.undrawn]

    def beacon(self, of: int, **changed: Any) -> StepBeacon:
        """The beacon of a step: each was anchored in a batch of its own."""
        batch, _ = self.market.anchor_chain[of - 1]
        assert batch.beacon is not None
        values: dict[str, Any] = {
            "job": self.spec.job(), "step": self.next_step, "of": StepNumber(of),
            "batch": batch.root, "block": batch.block, "beacon": batch.beacon,
        }  # fmt: skip
        return StepBeacon(**(values | changed))

    def notices_due(self) -> list[Notice]:
        """Joins, suspensions of convicts, what is missing, and who is late."""
        due = super().notices()
        for peer in sorted(self.docket.convicts & self.record.members.keys()):
            due.append(self.notice_of("suspension", peer, self.record.previous, len(due)))
        for case in self._cases():
            if self.is_missing(case) and not case.heard and not case.is_noticed:
                due.append(self.notice_of("missing_data", case.doer, case.subject, len(due)))
            if self.is_silent(case) and case.opened + self.audit.deadline <= self.next_step:
                assert case.auditor is not None
                due.append(self.notice_of("missed_report", case.auditor, case.subject, len(due)))
        return due

    def reports(self) -> list[Report]:
        """What everybody says who was asked."""
        return [self.report(case) for case in self._cases() if not self.is_silent(case)]

    def report(self, case: Case, verdict: Verdict | None = None, **changed: Any) -> Report:
        """What the present auditor of a case says; with a `verdict`, what follows that one."""
        assert case.auditor is not None
        truth = self.truth(case) if verdict is None else verdict
        found, is_repeat = truth, case.kind == "report" and not case.is_of_sum
        if is_repeat:
            truth = "match" if found == case.said else "mismatch"
        says_nothing = found == "missing" or case.is_of_sum
        distances = () if says_nothing else self.distances(case, found, is_repeat=is_repeat)
        about: dict[str, Any] = {
            "round": case.step, "group": case.stage,
            "subject": case.subject, "attempt": case.attempt,
        }  # fmt: skip
        projections = changed.pop("projections", (1_000_000, -7))
        return report_claim(
            self.spec.job(), case.auditor, truth, distances, projections, **(about | changed)
        )

    def distances(self, case: Case, found: Verdict, *, is_repeat: bool) -> tuple[int, ...]:
        """Distances that `found` follows from, by the job's table."""
        projections = 0 if is_repeat else None
        return distances_of(case.stage, self.spec, found, projections=projections)

    def truth(self, case: Case) -> Verdict:
        """What a replay of a case shows."""
        if self.is_missing(case) and not case.heard:
            return "missing"
        lies = case.worker == self.peer(BOB) and case.step >= LIE_FROM
        return "mismatch" if lies else "match"

    def is_silent(self, case: Case) -> bool:
        """Whether the present auditor never answers."""
        of_ann = case.kind == "work" and (case.step, case.worker) == (1, self.peer(ANN))
        return of_ann and case.attempt == case.first

    def is_missing(self, case: Case) -> bool:
        """Whether tensors of the work were nowhere when it was first asked for."""
        return case.kind == "work" and (case.step, case.worker) == (1, self.peer(CEM))

    def claim(
        self, member: Member, items: Sequence[ItemNumber] | None = None, **changed: Any
    ) -> tuple[WorkClaim, tuple[Leaf, ...]]:
        """A claim of work that names the reports which its peer has given."""
        reports = self._held.get(member.session.peer, ())
        return super().claim(member, items, **({"reports": reports} | changed))

    def _cases(self) -> list[Case]:
        """Cases that wait for a report."""
        return [case for case, _ in self.docket.open.values() if case.auditor is not None]


def by_auditor(said: Said) -> dict[PeerId, tuple[Digest, ...]]:
    """Names of the reports in `said` by their auditors, ascending."""
    found: dict[PeerId, tuple[Digest, ...]] = {}
    for claim, _ in (each for each in said if not isinstance(each, Message)):
        found[claim.peer] = tuple(sorted((*found.get(claim.peer, ()), claim.digest())))
    return found


def told(twist: Twist = HONEST, market: Anchoring | None = None) -> CheckedMaker:
    """A job that was told so from the beginning, anchored by `market`."""
    job = CheckedMaker(
        name="checked",
        members=make_members("abc"),
        opening_block=1,
        market=market or MadeUpAnchorChain(),
        twist=twist,
    )
    job.run()
    return job


@cache
def honest() -> CheckedMaker:
    """The story as it is, made once."""
    return told()
