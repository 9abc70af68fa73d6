"""Does money that was set aside stay safe, whatever parties sign and call? On the model."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.escrow_model import BURST, TAIL, Call, Escrow, new_escrow, random_call

Place = tuple[int, str]  # a job and an account


@dataclass
class Watcher:
    """What should be true of `escrow`, from the calls alone."""

    escrow: Escrow
    inside: int = 0  # base units in the contract
    best: dict[Place, int] = field(default_factory=lambda: defaultdict(int))  # most that vested
    rises: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    reclaimed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    brought: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        budgets = {at: job.funded for at, job in enumerate(self.escrow.jobs)}
        self.brought.update(budgets)
        self.inside = sum(self.escrow.balances.values()) + sum(budgets.values())

    def make(self, call: Call) -> None:
        """Make a call, and check everything."""
        before, funded = self._members(), [job.funded for job in self.escrow.jobs]
        if not call.apply(self.escrow):
            return
        self._note(call.name, call.arguments)
        for at, job in enumerate(self.escrow.jobs):
            self.reclaimed[at] += max(0, funded[at] - job.funded)
        self._check_sums()
        self._check_members(call, before)

    def _members(self) -> dict[Place, tuple[int, int, int]]:
        return {
            (at, who): (member.limit, member.claimed, member.earned)
            for at, job in enumerate(self.escrow.jobs)
            for who, member in job.members.items()
        }

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "deposit":
            self.inside += arguments[1]
        if name == "withdraw":
            self.inside -= arguments[1]
        if name == "top_up":
            self.inside += arguments[1]
            self.brought[arguments[0]] += arguments[1]
        if name == "claim":
            for who, _, vested in arguments[1]:
                place = (arguments[0], who)
                self.best[place] = max(self.best[place], vested)

    def _check_sums(self) -> None:
        held = sum(self.escrow.balances.values())
        for at, job in enumerate(self.escrow.jobs):
            members = job.members.values()
            held += job.funded + sum(each.stake - each.claimed for each in members)
            assert sum(each.limit for each in members) == job.committed <= job.funded
            shown = sum(max(each.claimed, each.earned) for each in members)
            assert self.reclaimed[at] + shown <= self.brought[at]
        assert held == self.inside

    def _check_members(self, call: Call, before: dict[Place, tuple[int, int, int]]) -> None:
        rise: dict[int, int] = defaultdict(int)
        for (at, who), (limit, claimed, earned) in before.items():
            member = self.escrow.jobs[at].members[who]
            assert member.claimed >= claimed and member.earned >= earned
            assert max(member.claimed, member.earned) <= member.limit
            assert member.claimed <= self.best[at, who]
            assert member.limit >= limit or call.name in ("quit", "release")
            rise[at] += max(0, member.limit - limit)
        for at, amount in rise.items():
            if amount:
                self.rises[at].append((self.escrow.now, amount))

    def check_end(self) -> None:
        """Limits rose as the bucket lets them, the best seal pays, and all stake comes free."""
        for at, job in enumerate(self.escrow.jobs):
            rises = self.rises[at]
            for first, (start, _) in enumerate(rises):
                total = 0
                for end, amount in rises[first:]:
                    total += amount
                    assert total <= BURST + job.rate * (end - start) // 3600
            self.escrow.claim(at, [(who, 0, self.best[at, who]) for who in job.members])
            for who, member in job.members.items():
                assert member.claimed == min(self.best[at, who], member.limit)
                self.escrow.quit(at, who, 0)
        self.escrow.wait(TAIL)
        for at, job in enumerate(self.escrow.jobs):
            for who in job.members:
                self.escrow.release(at, who)
                assert job.members[who].stake == 0
        self._check_sums()


@given(st.randoms(use_true_random=False), st.integers(20, 120))
def test_escrow__any_history__keeps_its_invariants(draw: Random, calls: int) -> None:
    watcher = Watcher(new_escrow(1_800_000_000))

    for _ in range(calls):
        watcher.make(random_call(draw, watcher.escrow))

    watcher.check_end()
