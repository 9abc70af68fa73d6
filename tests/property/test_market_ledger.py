"""Conservation in the ledger, over any history of deposits, seals, debits, claims and refunds.

After every event: the sum of all accounts is zero; no account but `outside` is negative; of every
job, escrowed = unearned + earned + vested + debited + refunded; what was paid never exceeds what
was debited; and folding all entries again gives the same balances.
"""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId
from market.domain import ledger
from tests.support.mutation import mutant

ACCOUNTS = tuple(Address(bytes([n]) * 20) for n in (3, 4, 5))
JOBS = tuple(JobId(bytes([n]) * 32) for n in (7, 8))


def machine(book: ModuleType) -> type[RuleBasedStateMachine]:
    """Posters, coordinators, settlement and claimants over `ledger`, or a mutant of it."""

    class Books(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.balances: dict[str, int] = {}
            self.entries: list[Any] = []
            self.pay: dict[JobId, tuple[PayLeaf, ...]] = dict.fromkeys(JOBS, ())
            self.debited: dict[tuple[JobId, Address], int] = {}
            self.deposited: dict[JobId, int] = dict.fromkeys(JOBS, 0)
            self.refunded: dict[JobId, int] = dict.fromkeys(JOBS, 0)
            self.claimed: dict[Address, int] = dict.fromkeys(ACCOUNTS, 0)

        def happens(self, entries: list[Any]) -> None:
            self.balances = book.book(self.balances, entries)
            self.entries += entries

        @rule(job=st.sampled_from(JOBS), amount=st.integers(1, 1000))
        def deposit(self, job: JobId, amount: int) -> None:
            self.happens(book.deposit(job, BaseUnits(amount)))
            self.deposited[job] += amount

        @rule(
            job=st.sampled_from(JOBS),
            work=st.lists(st.integers(0, 60), min_size=3, max_size=3),
            share=st.integers(0, 2),
        )
        def seal(self, job: JobId, work: list[int], share: int) -> None:
            """A step: accounts earn, part of it vests, never more than is in escrow."""
            known = {leaf.account: leaf for leaf in self.pay[job]}
            free = self.deposited[job] - self.refunded[job]
            free -= sum(leaf.earned for leaf in known.values())
            after = []
            for account, wanted in zip(ACCOUNTS, work, strict=True):
                last = known.get(account)
                amount = min(wanted, free)
                free -= amount
                earned = (last.earned if last else 0) + amount
                vested = max(last.vested if last else 0, earned * share // 2)
                if earned:
                    after.append(PayLeaf(account, BaseUnits(earned), BaseUnits(vested)))
            self.happens(book.sealed(job, self.pay[job], after))
            self.pay[job] = tuple(after)

        @rule(job=st.sampled_from(JOBS), earned_too=st.booleans())
        def debit(self, job: JobId, earned_too: bool) -> None:
            """An epoch takes what vested, or, after a close, all that was earned."""
            parts = {
                leaf.account: BaseUnits(amount)
                for leaf in self.pay[job]
                if (amount := self._owed(job, leaf, earned_too)) > 0
            }
            total = BaseUnits(sum(parts.values()))
            if not total:
                return
            self.happens(book.debit(job, total, parts, self.balances))
            for account, part in parts.items():
                self.debited[job, account] = self.debited.get((job, account), 0) + part
            if earned_too:  # the close ended the job: nothing more vests
                self.pay[job] = tuple(
                    PayLeaf(leaf.account, leaf.earned, leaf.earned) for leaf in self.pay[job]
                )

        def _owed(self, job: JobId, leaf: PayLeaf, earned_too: bool) -> int:
            total = leaf.earned if earned_too else leaf.vested
            return total - self.debited.get((job, leaf.account), 0)

        @rule(account=st.sampled_from(ACCOUNTS), part=st.integers(1, 4))
        def claim(self, account: Address, part: int) -> None:
            owed = self.balances.get(book.due(account), 0) // part
            self.happens(book.claimed(account, BaseUnits(owed)))
            self.claimed[account] += owed

        @rule(job=st.sampled_from(JOBS))
        def refund(self, job: JobId) -> None:
            """What nobody earned goes back."""
            earned = sum(leaf.earned for leaf in self.pay[job])
            amount = self.deposited[job] - self.refunded[job] - earned
            self.happens(book.refund(job, BaseUnits(amount)))
            self.refunded[job] += amount

        @rule()
        def the_chain_forgets_and_remembers(self) -> None:
            """The newest entry is booked back, and booked again."""
            newest = self.entries[-1:]
            back = book.reversal(newest)
            self.balances = book.book(self.balances, back, overdraft=True)
            self.balances = book.book(self.balances, newest)
            self.entries += [*back, *newest]

        @invariant()
        def nothing_is_made_or_lost(self) -> None:
            assert sum(self.balances.values()) == 0
            for name, amount in self.balances.items():
                assert amount >= 0 or name == book.OUTSIDE, name

        @invariant()
        def every_job_adds_up(self) -> None:
            for job in JOBS:
                flows = book.JobFlows(job)
                flows.take(self.entries)
                totals = flows.totals()
                debited = sum(part for (of, _), part in self.debited.items() if of == job)
                earned = sum(leaf.earned for leaf in self.pay[job])
                assert totals.escrowed == self.deposited[job]
                assert totals.debited == debited
                assert totals.refunded == self.refunded[job]
                assert totals.earned + totals.vested == earned - debited
                assert totals.escrowed == totals.remaining + totals.debited + totals.refunded

        @invariant()
        def paid_is_what_was_claimed(self) -> None:
            for account in ACCOUNTS:
                paid = self.balances.get(book.paid(account), 0)
                owed = self.balances.get(book.due(account), 0)
                debited = sum(part for (_, of), part in self.debited.items() if of == account)
                assert paid == self.claimed[account]
                assert owed == debited - paid
            assert sum(self.claimed.values()) <= sum(self.debited.values())

        @invariant()
        def entries_rebuild_the_balances(self) -> None:
            again = book.book({}, self.entries, overdraft=True)
            assert {k: v for k, v in again.items() if v} == {
                k: v for k, v in self.balances.items() if v
            }

    return Books


def run(book: ModuleType) -> None:
    run_state_machine_as_test(
        machine(book),
        settings=settings(stateful_step_count=25, report_multiple_bugs=False),
    )


def test_ledger__any_history__conserves_every_base_unit() -> None:
    run(ledger)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "after.get(entry.target, 0) + entry.amount",
            "after.get(entry.target, 0) + entry.amount + 1",
        ),
        ("earned(job, account), max(0, more))", "earned(job, account), max(0, more) + 1)"),
        ("min(part, max(0, ", "max(part, max(0, "),
        (
            "_moves((escrow(job), refunded(job), amount), job=job)",
            "_moves((escrow(job), OUTSIDE, amount))",
        ),
        (
            "_moves((due(account), paid(account), amount))",
            "_moves((OUTSIDE, paid(account), amount))",
        ),
    ],
)
def test_mutated_ledger__one_line_wrong__does_not_conserve(old: str, new: str) -> None:
    with pytest.raises((AssertionError, InvariantBroken)):
        run(mutant(ledger, old, new))
