"""Conservation in the ledger of stakes, over any history of stakes, reservations and slashes.

After every event: the sum of all accounts is zero; no account but `outside` is negative; free,
reserved, unbonding and burned stake are what StakeRegistry has, part by part; a slash takes nothing
from another job's reservation.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from market.domain import ledger

ACCOUNTS = tuple(Address(bytes([n]) * 20) for n in (3, 4))
JOBS = tuple(JobId(bytes([n]) * 32) for n in (7, 8))


class _Stakes(RuleBasedStateMachine):
    """Stakers and a slasher over `ledger`."""

    def __init__(self) -> None:
        super().__init__()
        self.balances: dict[str, int] = {}
        self.deposited: dict[JobId, int] = dict.fromkeys(JOBS, 0)
        self.free: dict[Address, int] = dict.fromkeys(ACCOUNTS, 0)
        self.unbonding: dict[Address, int] = dict.fromkeys(ACCOUNTS, 0)
        self.reserved = {(job, each): 0 for job in JOBS for each in ACCOUNTS}
        self.burned: dict[Address, int] = dict.fromkeys(ACCOUNTS, 0)

    def happens(self, entries: list[Any]) -> None:
        self.balances = ledger.book(self.balances, entries)

    @rule(account=st.sampled_from(ACCOUNTS), amount=st.integers(1, 100))
    def stakes(self, account: Address, amount: int) -> None:
        self.happens(ledger.staked(account, BaseUnits(amount)))
        self.free[account] += amount

    @rule(account=st.sampled_from(ACCOUNTS), job=st.sampled_from(JOBS), part=st.integers(1, 3))
    def reserves_or_unbonds(self, account: Address, job: JobId, part: int) -> None:
        amount = BaseUnits(self.free[account] // part // 2)
        self.happens(ledger.stake_reserved(job, account, amount))
        self.happens(ledger.unbonded(account, amount))
        self.free[account] -= 2 * amount
        self.reserved[job, account] += amount
        self.unbonding[account] += amount

    @rule(account=st.sampled_from(ACCOUNTS), job=st.sampled_from(JOBS))
    def releases_and_withdraws(self, account: Address, job: JobId) -> None:
        self.happens(ledger.stake_released(job, account, BaseUnits(self.reserved[job, account])))
        self.happens(ledger.withdrawn(account, BaseUnits(self.unbonding[account])))
        self.free[account] += self.reserved[job, account]
        self.reserved[job, account] = self.unbonding[account] = 0

    @rule(
        account=st.sampled_from(ACCOUNTS),
        job=st.sampled_from(JOBS),
        tenths=st.integers(1, 10),
        burned=st.integers(5, 10),
    )
    def slash(self, account: Address, job: JobId, tenths: int, burned: int) -> None:
        """As StakeRegistry takes it; the restitution comes back as a deposit."""
        key, free = (job, account), self.free[account]
        taken = (self.reserved[key] + free + self.unbonding[account]) * tenths // 10
        burn = -(-taken * burned // 10)
        entries = ledger.slashed_stake(
            job, account, BaseUnits(taken), BaseUnits(burn), self.balances
        )
        self.happens(entries)
        self.happens(ledger.deposit(job, BaseUnits((taken - burn) // 2)))
        self.deposited[job] += (taken - burn) // 2
        from_reserved = min(taken, self.reserved[key])
        from_free = min(taken - from_reserved, free)
        self.reserved[key] -= from_reserved
        self.free[account] -= from_free
        self.unbonding[account] -= taken - from_reserved - from_free
        self.burned[account] += burn

    @invariant()
    def stakes_are_the_chains(self) -> None:
        for account in ACCOUNTS:
            assert self.balances.get(ledger.stake(account), 0) == self.free[account]
            assert self.balances.get(ledger.unbonding(account), 0) == self.unbonding[account]
            assert self.balances.get(ledger.slashed(account), 0) == self.burned[account]
            for job in JOBS:
                held = self.balances.get(ledger.reserved(job, account), 0)
                assert held == self.reserved[job, account]

    @invariant()
    def nothing_is_made_or_lost(self) -> None:
        assert sum(self.balances.values()) == 0
        for name, amount in self.balances.items():
            assert amount >= 0 or name == ledger.OUTSIDE, name
        for job in JOBS:
            assert self.balances.get(ledger.escrow(job), 0) == self.deposited[job]


def test_ledger__any_stakes_and_slashes__are_those_of_the_registry() -> None:
    run_state_machine_as_test(_Stakes, settings=settings(stateful_step_count=20))
