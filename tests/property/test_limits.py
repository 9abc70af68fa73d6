"""Do the rules of limits keep honest accounts at work, and what can a coordinator cost them?

Coordinator and agents apply `contracts.governance.limits` to the model of the escrow, whose state
each sees some rounds late.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance import limits
from contracts.governance.escrow import Budget, Member
from contracts.governance.limits import Earnings, Idle
from contracts.terms.ids import Address
from tests.support import escrow_model as model

WORKERS = ("worker", "friend", "stranger")
ADDRESSES = {who: Address(who.encode().ljust(20)) for who in WORKERS}
STAKE = 5_000_000


@dataclass
class Swarm:
    """A job of three accounts whose rounds are sealed one after the other."""

    draw: Random
    confirming: int  # rounds
    period: int
    window: int
    planned: int  # base units that an account earns in a round at most
    escrow: model.Escrow = field(default_factory=lambda: model.new_escrow(0))
    totals: dict[str, list[int]] = field(default_factory=lambda: {who: [0] for who in WORKERS})
    idle: list[tuple[int, str, Idle]] = field(default_factory=list)
    round: int = 0
    last_vesting: int = 10**9  # round after which nothing vests

    def __post_init__(self) -> None:
        job = self.escrow.jobs[0]
        job.funded, job.rate = 10**12, 10**12
        for who in WORKERS:
            self.escrow.bond(0, who, STAKE)
        self.seen = deque([self.chain()] * (self.confirming + 1), maxlen=self.confirming + 1)

    def earnings(self, who: str) -> Earnings:
        """By the newest seal."""
        totals = self.totals[who]
        vested = totals[max(0, min(len(totals) - 1 - self.window, self.last_vesting))]
        pay = limits.round_pay(totals, self.planned)
        return Earnings(totals[-1], vested, 0, pay)

    def chain(self) -> tuple[Budget, dict[Address, Member]]:
        """The job as the escrow has it now."""
        job = self.escrow.jobs[0]
        return Budget(job.funded, job.committed, job.closed_at), {
            ADDRESSES[who]: Member(it.limit, it.claimed, it.earned, it.stake, it.end)
            for who, it in job.members.items()
            if who in ADDRESSES
        }

    def why_idle(self, who: str) -> Idle | None:
        """By what the account sees, some rounds late."""
        budget, members = self.seen[0]
        pay, lag = self.earnings(who), limits.lag(self.window, 3)
        return limits.why_idle(pay, members[ADDRESSES[who]], budget, stake=STAKE, lag_rounds=lag)

    def grant(self) -> None:
        """What the coordinator does before a round; it knows what it has sent itself."""
        _, members = self.chain()
        due = limits.limits_to_grant(
            {ADDRESSES[who]: self.earnings(who) for who in WORKERS},
            members,
            limits.rounds_ahead(self.period, self.confirming),
        )
        names = {account: who for who, account in ADDRESSES.items()}
        self.escrow.grant(0, [(names[each.account], each.limit) for each in due])

    def play(self, rounds: int, *, granted: bool = True) -> None:
        """Seal rounds; without `granted` the coordinator raises nothing."""
        for _ in range(rounds):
            if granted:
                self.grant()
            for who, totals in self.totals.items():
                why = self.why_idle(who)
                if why is not None:
                    self.idle.append((self.round, who, why))
                done = self.draw.choice((0, self.draw.randrange(self.planned), self.planned))
                totals.append(totals[-1] + (0 if why else done))
            self.escrow.wait(10)
            self.round += 1
            self.seen.append(self.chain())


swarms = st.builds(
    Swarm,
    st.randoms(use_true_random=False),
    confirming=st.integers(0, 12),
    period=st.integers(1, 30),
    window=st.integers(0, 6),
    planned=st.integers(1, 50_000),
)


@given(swarms)
def test_limits__enough_budget_and_honest_parties__all_work_once_the_first_grants_are_confirmed(
    swarm: Swarm,
) -> None:
    swarm.play(80)

    first = swarm.confirming + 1
    assert [each for each in swarm.idle if each[0] >= first] == []
    for who, totals in swarm.totals.items():
        assert totals[-1] <= swarm.escrow.jobs[0].members[who].limit


@given(swarms, st.integers(0, 60))
def test_limits__coordinator_raises_none_any_more__all_that_is_earned_can_be_paid(
    swarm: Swarm, rounds: int
) -> None:
    swarm.play(rounds)
    swarm.play(40, granted=False)

    for who, totals in swarm.totals.items():
        assert totals[-1] <= swarm.escrow.jobs[0].members[who].limit


@given(swarms)
def test_limits__nothing_vests_any_more__each_loses_at_most_the_pay_of_the_lag_and_a_round(
    swarm: Swarm,
) -> None:
    swarm.last_vesting = 20
    swarm.play(80)

    for who in WORKERS:
        most = (limits.lag(swarm.window, 3) + 1) * swarm.planned
        assert swarm.earnings(who).at_risk <= most


@given(swarms)
def test_limits__an_account_ends_or_the_job_closes__nobody_works_once_it_is_confirmed(
    swarm: Swarm,
) -> None:
    swarm.play(20)
    swarm.escrow.end(0, "worker")
    swarm.play(swarm.confirming + 1)
    swarm.idle.clear()
    swarm.play(3)
    assert {who for _, who, why in swarm.idle if why == "ended"} == {"worker"}

    swarm.escrow.close(0)
    swarm.seen.extend([swarm.chain()] * (swarm.confirming + 1))
    assert [swarm.why_idle(who) for who in WORKERS] == ["ended"] * 3
