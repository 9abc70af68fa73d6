"""Random lives of a checked job's draws: whatever is said, missed or left, the docket keeps faith.

A life is a few steps of work, then empty seals until nothing is open: whoever owes a report says
something, leaves, or is silent until a Notice calls it late. `vesting` folds the money beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from operator import ge
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.governance import vesting
from contracts.governance.checking import Reported, Standing
from contracts.governance.rounds import flops_of
from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, PricePerPflop
from contracts.terms.ids import ZERO_DIGEST, PeerId, StepNumber
from contracts.terms.messages import MILLION, AuditSpec
from contracts.terms.work import WorkClaim
from tests.support.dockets import CheckedJob, audit_spec, distances_of, peer
from tests.support.examples import examples
from verification.draws import cases

WORKERS, OUTSIDE = ("ann", "bob", "cem", "dan"), ("out", "oda", "olu")
OWNERS = {"dan": "cem"}  # two machines of one wallet
STEPS, MANY_STEPS, WINDOW, DEADLINE, MOST_SEALS = 3, 9, 2, 2, 150
FAR = 10**9
SAYINGS = ("match", "match", "mismatch", "missing", "silence", "leave")

MOST_UNITS = 3 * len(WORKERS)
FULL_STEP = {"units_per_step": MOST_UNITS}
PRICE = PricePerPflop(10**6)
"""The ceiling: what each is paid for a unit, inside and outside."""
AUDIT = audit_spec(price=PRICE, sums=MILLION, repeats=MILLION // 2, deadline=DEADLINE)

choices = st.lists(st.integers(0, 10**6), min_size=30, max_size=60)


@dataclass
class Life:
    """One job, seal by seal, with its pay beside it; `looks` see each seal."""

    numbers: list[int]
    looks: "Sequence[Callable[[Life], None]]"
    outside: tuple[str, ...] = OUTSIDE
    sayings: tuple[str, ...] = SAYINGS
    audit: AuditSpec = AUDIT
    steps: int = STEPS  # with work, at the most
    said: dict[tuple[PeerId, bytes, int], str] = field(default_factory=dict)
    vested: list[tuple[PeerId, StepNumber]] = field(default_factory=list)  # in the newest seal
    worked: int = 0  # FLOPs that were paid as work
    replayed: int = 0  # of all reports

    def __post_init__(self) -> None:
        self.job = CheckedJob(
            WORKERS, OWNERS, self.outside, audit=self.audit, price=PRICE, rules=FULL_STEP
        )
        self.pay: Any = vesting.PayState(window=WINDOW)
        self._next: Iterator[int] = cycle(self.numbers)

    def choose(self, number: int) -> int:
        """The next choice among so many."""
        return next(self._next) % number

    # ------------------------------------------------------------------------------- the seals

    def live(self) -> None:
        """From the first step to the last seal; raises AssertionError if a case never ends."""
        for _ in range(self.steps):
            self._seal(self._work())
        for _ in range(MOST_SEALS):
            if self.job.docket.is_clear:
                return self._seal([], last=True)
            self._seal([])
        raise AssertionError("a case never ends")

    def _work(self) -> list[WorkClaim]:
        if not self.job.docket.takes_work(0):
            return []
        names = [name for name in WORKERS if peer(name) in self.job.members]
        return [self.job.commit(name, 1 + self.choose(3)) for name in names]

    def _seal(self, commits: list[WorkClaim], *, last: bool = False) -> None:
        said: list[Any] = [*commits, *self._beacons(bool(commits))]
        if commits:
            said.append(self.job.chunk(WORKERS[self.choose(len(WORKERS))]))
        leaving: set[PeerId] = set()
        for case, _ in self.job.docket.open.values():
            if case.auditor is not None:
                said += self._said_of(case, leaving)
        said += [self.job.notice("leave", self.job.name_of(each)) for each in sorted(leaving)]
        due = self.job.docket.convicts & self.job.members.keys() - leaving
        said += [self.job.notice("suspension", self.job.name_of(each)) for each in sorted(due)]
        self._fold(commits, self.job.seal(*said, last=last), last=last)
        for look in self.looks:
            look(self)

    def _beacons(self, is_busy: bool) -> list[Any]:
        """Those of some steps, in order; one in four is zero."""
        waiting = list(self.job.docket.undrawn)
        wanted = waiting[: self.choose(3)] if is_busy else waiting
        return [self.job.beacon(of, None if self.choose(4) else ZERO_DIGEST) for of in wanted]

    def _said_of(self, case: Any, leaving: set[PeerId]) -> list[Any]:
        """What comes from, or of, who owes a report; it has made up its mind once."""
        name = (case.auditor, case.subject, case.round)
        saying = self.said.setdefault(name, self.sayings[self.choose(len(self.sayings))])
        is_late = case.opened + DEADLINE <= self.job.step + 1
        who = self.job.name_of(case.auditor)
        if saying == "leave" and case.auditor in self.job.members:
            leaving.add(case.auditor)
        elif saying in ("leave", "silence"):
            late = self.job.notice("missed_report", who, case.subject)
            return [late] if is_late else []
        elif saying == "missing":
            nothing = self.job.notice("missing_data", self.job.name_of(case.worker), case.subject)
            return [nothing, self.job.report(case, "missing")]
        else:
            return [self._report(case, saying)]
        return []

    def _report(self, case: Any, verdict: Any) -> Reported:
        self.replayed += case.flops
        if case.kind != "report" or case.is_of_sum:
            return self.job.report(case, verdict)
        away = 0 if verdict == "match" else FAR
        distances = distances_of(case.stage, self.job.spec, case.said, projections=away)
        return self.job.report(case, verdict, distances=distances)

    def _fold(self, commits: list[WorkClaim], standing: Standing, *, last: bool) -> None:
        work = {each.peer: flops_of(self.job.spec, each) for each in commits}
        self.worked += sum(work.values())
        fresh = [(each, self.job.step) for each in {*work, *standing.audits}]
        before = {(each, step) for step, done in self.pay.waiting for each in done}
        self.pay = vesting.advance(self.pay, self.job.step, work, standing, last=last)
        left = {(each, step) for step, done in self.pay.waiting for each in done}
        lost = {each.peer for each in standing.forfeits}
        self.vested = [each for each in {*before, *fresh} - left if each[0] not in lost]

    # --------------------------------------------------------------------------- what it came to

    def owner(self, who: PeerId) -> bytes:
        """A wallet's account."""
        return self.job.leases[who].account


# ---------------------------------------------------------------------------------- the invariants


def owners_differ(life: Life) -> None:
    """Whoever is heard or asked about a subject is of another owner than its doer and the rest."""
    for case, _ in life.job.docket.open.values():
        heard = [life.owner(each.auditor) for each in case.heard]
        asked = [life.owner(each) for each in case.order if case.awaits is None]
        everybody = [life.owner(case.doer), *heard, *asked]
        assert len(set(everybody)) == len(everybody)


def nothing_vests_early(life: Life) -> None:
    """Pay of step s waits for its owner's open cases up to s + W, its debts, and all beacons."""
    opened = [case for case, _ in life.job.docket.open.values()]
    for who, step in life.vested:
        assert not any(undrawn <= step + WINDOW for undrawn in life.job.docket.undrawn)
        for case in opened:
            assert who not in (case.auditor, case.accused)
            is_waited_for = case.doer == who and case.round != cases.CONFIRMING
            assert not (is_waited_for and case.held_since <= step + WINDOW)


def nothing_falls() -> Callable[[Life], None]:
    """What each account has earned, vested and forfeited is never less than before."""
    known: dict[bytes, tuple[int, int, int]] = {}

    def look(life: Life) -> None:
        leaves = vesting.pay_after(life.pay, life.job.leases)
        lost = vesting.forfeited_by(life.pay, life.job.leases)
        assert known.keys() <= {leaf.account for leaf in leaves}
        for leaf in leaves:
            now = (leaf.earned, leaf.vested, lost[leaf.account])
            assert all(map(ge, now, known.get(leaf.account, (0, 0, 0))))
            assert leaf.earned >= leaf.vested + lost[leaf.account]
            assert leaf.earned == leaf.vested + lost[leaf.account] or not life.pay.ended
            known[leaf.account] = now

    return look


def turns_are_told_apart() -> Callable[[Life], None]:
    """An attempt at a subject is asked of one auditor under one beacon, whatever becomes of it."""
    known: dict[tuple[bytes, int], tuple[PeerId, bytes]] = {}

    def look(life: Life) -> None:
        for case, _ in life.job.docket.open.values():
            if case.auditor is not None and case.beacon is not None:
                turn, asked = (case.subject, case.attempt), (case.auditor, case.beacon)
                assert known.setdefault(turn, asked) == asked

    return look


def budget_is_kept(life: Life) -> None:
    """Everybody together earns what the work is worth, and the budget for audits, at the most."""
    leaves = vesting.pay_after(life.pay, life.job.leases)
    worth = life.worked * PRICE // FLOPS_PER_PFLOP
    assert sum(leaf.earned for leaf in leaves) <= worth + life.audit.budget


def audits_are_paid_whole(life: Life) -> None:
    """Whoever has reported is paid for its replay; of lives without a dispute."""
    assert life.job.docket.spent == life.replayed * PRICE


@settings(max_examples=examples(20), report_multiple_bugs=False)
@given(numbers=choices, is_crowded=st.booleans())
def test_docket__any_life__keeps_its_invariants(numbers: list[int], is_crowded: bool) -> None:
    """With and without auditors outside."""
    looks = (owners_differ, nothing_vests_early, nothing_falls(), turns_are_told_apart())
    Life(numbers, looks, OUTSIDE if is_crowded else ()).live()


@pytest.mark.parametrize(
    ("look", "sayings"),
    [
        (budget_is_kept, ("match", "mismatch", "mismatch", "missing")),
        (audits_are_paid_whole, ("match", "match", "silence", "leave")),
    ],
    ids=["many disputes", "no dispute"],
)
@settings(max_examples=examples(10))
@given(numbers=choices, units=st.integers(MOST_UNITS, 8 * MOST_UNITS))
def test_docket__budget_for_few_steps__is_never_passed_and_pays_what_may_come(
    look: Callable[[Life], None], sayings: tuple[str, ...], numbers: list[int], units: int
) -> None:
    """All reports are repeated, and the job ends."""
    budget = BaseUnits(units * PRICE)
    audit = audit_spec(price=PRICE, repeats=MILLION, deadline=DEADLINE, budget=budget)
    Life(numbers, (look,), sayings=sayings, audit=audit, steps=MANY_STEPS).live()
