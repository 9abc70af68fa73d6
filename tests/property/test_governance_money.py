"""Money over any history of seals, epochs, objections, closes and claims.

One machine plays poster, coordinator, proposer, disputes role and claimants; the escrow it books
into is the Python twin of what the contracts do. Its invariants:

* conservation: what jobs were debited in final epochs = the final root's sum = claimed + claimable
* no pay without a seal, and none twice
* a final root never changes
* paid <= funded
* no debit without its job's seal, none above the epoch cap
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from contracts.governance import settlement
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.ids import Address, Digest, JobId, StepNumber
from tests.support import settlement_window as window
from tests.support.mutation import mutant

ACCOUNTS = tuple(Address(bytes([n]) * 20) for n in (3, 4, 5))
JOBS = tuple(JobId(bytes([n]) * 32) for n in (7, 8))
CAP = 40


@dataclass
class Escrow:
    """What the chain holds of one job."""

    earned: dict[Address, int] = field(default_factory=dict)
    vested: dict[Address, int] = field(default_factory=dict)
    seals: list[tuple[PayLeaf, ...]] = field(default_factory=list)
    debited: int = 0
    last_debit: int = 0
    closed: bool = False


def money(settle: ModuleType, life: ModuleType) -> type[RuleBasedStateMachine]:
    """The machine, over `settlement` and `window` or mutants of them."""

    class Money(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.clock = 100
            self.window = life.Window()
            self.terms = life.Terms(5, 5, 10, 1)
            self.jobs = {job: Escrow() for job in JOBS}
            self.final: Any = settle.NOTHING_SETTLED
            self.pending: Any = None
            self.funded = self.paid = 0
            self.claimed: dict[Address, int] = {}
            self.final_roots: dict[int, bytes] = {}

        @rule(
            job=st.sampled_from(JOBS),
            work=st.lists(st.integers(0, 30), min_size=3, max_size=3),
            share=st.integers(0, 3),
        )
        def seal(self, job: JobId, work: list[int], share: int) -> None:
            """One more step: everybody earns something, and a part of all earned vests."""
            held = self.jobs[job]
            if held.closed:
                return
            for account, amount in zip(ACCOUNTS, work, strict=True):
                held.earned[account] = held.earned.get(account, 0) + amount
                ripe = held.earned[account] * share // 3
                held.vested[account] = max(held.vested.get(account, 0), ripe)
            held.seals.append(
                tuple(
                    PayLeaf(each, BaseUnits(held.earned[each]), BaseUnits(held.vested[each]))
                    for each in ACCOUNTS
                    if held.earned[each]
                )
            )

        @rule(job=st.sampled_from(JOBS))
        def close(self, job: JobId) -> None:
            """The job ends by its newest seal."""
            self.jobs[job].closed = bool(self.jobs[job].seals)

        @rule()
        def propose(self) -> None:
            """The proposer posts what follows from the newest seals."""
            number = (self.window.epoch or 0) + 1
            statements = [each for job in JOBS for each in self._statements(job)]
            if not statements:
                return
            before = self.window.epoch
            self._happens(life.Proposed(number, self.clock))
            if self.window.epoch == before:
                return  # a window is open
            settled = settle.settle(number, self.final, statements)
            self.pending = settled
            for debit in settled.debits:
                held = self.jobs[debit.job]
                assert debit.statement.job == debit.job, "a debit by another job's seal"
                assert debit.statement.pay in held.seals, "a debit without a seal"
                assert 0 < debit.amount <= CAP, "a debit above the epoch cap"
                held.debited += debit.amount
                held.last_debit = debit.amount
                assert held.debited == debit.total

        @rule(seconds=st.integers(0, 12))
        def wait(self, seconds: int) -> None:
            """Time passes."""
            self.clock += seconds
            self._happens(life.Ticked(self.clock))

        @rule()
        def object(self) -> None:
            """The disputes role announces a rejection."""
            self._happens(life.RejectionAnnounced(self.window.epoch, self.clock))

        @rule()
        def reject(self) -> None:
            """The disputes role executes it."""
            self._happens(life.DebitsRejected(self.window.epoch, self.clock))

        @rule(account=st.sampled_from(ACCOUNTS))
        def claim(self, account: Address) -> None:
            """Somebody is paid what the final root grants beyond what he got."""
            granted = {each.account: each.cumulative for each in self.final.accounts}
            amount = granted.get(account, 0) - self.claimed.get(account, 0)
            assert amount >= 0, "a grant fell"
            self.claimed[account] = self.claimed.get(account, 0) + amount
            self.paid += amount

        def _happens(self, event: Any) -> None:
            self.window, effects = life.advance(self.window, event, self.terms)
            for effect in effects:
                assert effect.epoch not in self.final_roots, "a final epoch changed"
                match type(effect).__name__:
                    case "Finalize":
                        self.final = self.pending
                        self.funded = self.final.root.sum
                        self.final_roots[effect.epoch] = self.final.root.hash
                    case "Restore":
                        for debit in self.pending.debits:
                            self.jobs[debit.job].debited -= debit.amount
                self._settled()

        def _settled(self) -> None:
            self.pending = None

        def _statements(self, job: JobId) -> list[Any]:
            held = self.jobs[job]
            if held.closed:
                pay = held.seals[-1]
                due = BaseUnits(sum(leaf.earned for leaf in pay))
                step = StepNumber(len(held.seals))
                return [settle.ClosedStatement(job, _seal(job, step), step, pay, CAP, due, False)]
            return [
                settle.SealStatement(job, _seal(job, step), StepNumber(step), pay, CAP)
                for step, pay in enumerate(held.seals, start=1)
            ]

        @invariant()
        def conserved(self) -> None:
            """Jobs paid exactly what the final root grants, and nobody was paid more."""
            pending = {each.job: each.amount for each in getattr(self.pending, "debits", ())}
            final = sum(held.debited - pending.get(job, 0) for job, held in self.jobs.items())
            assert final == self.final.root.sum == self.funded
            assert self.paid == sum(self.claimed.values()) <= self.funded

        @invariant()
        def sealed_and_once(self) -> None:
            """Each account got at most what the newest seal of each job says, once."""
            for each in self.final.accounts:
                for job, amount in each.jobs:
                    held = self.jobs[job]
                    limit = held.earned if held.closed else held.vested
                    assert 0 < amount <= limit.get(each.account, 0)

    return Money


def _seal(job: JobId, step: int) -> Digest:
    return keccak(job + bytes([step % 256]))


def holds(settle: ModuleType = settlement, life: ModuleType = window) -> None:
    """Run the machine over the given modules."""
    run_state_machine_as_test(
        money(settle, life),
        settings=settings(stateful_step_count=30, report_multiple_bugs=False),
    )


def test_money__any_history__is_conserved_and_paid_once_by_a_seal() -> None:
    holds()


MUTANTS: dict[str, Callable[[], tuple[ModuleType, ModuleType]]] = {
    "conservation: a share is rounded up": lambda: (
        mutant(settlement, "owed[each] * amount // total", "-(-owed[each] * amount // total)"),
        window,
    ),
    "none twice: what was paid is forgotten": lambda: (
        mutant(
            settlement,
            "owed = _owed(statement, before)",
            "before, owed = {}, _owed(statement, {})",
        ),
        window,
    ),
    "no pay without a seal: earned pay is paid before it vests": lambda: (
        mutant(
            settlement,
            "return {leaf.account: leaf.vested for leaf in self.pay}",
            "return {leaf.account: leaf.earned for leaf in self.pay}",
        ),
        window,
    ),
    "epoch cap: it is not looked at": lambda: (
        mutant(settlement, "<= statement.epoch_cap", ">= 0"),
        window,
    ),
    "final root fixed: a final epoch can be objected to": lambda: (
        settlement,
        mutant(
            window,
            "case EpochState.POSTED, RejectionAnnounced(epoch, at) if epoch == window.epoch:",
            "case (EpochState.POSTED | EpochState.FINAL), RejectionAnnounced(epoch, at):",
        ),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_money__one_line_is_wrong__is_noticed(name: str) -> None:
    settle, life = MUTANTS[name]()

    with pytest.raises(AssertionError):
        holds(settle, life)
