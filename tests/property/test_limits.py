"""Do the rules of limits keep honest accounts at work, and what can a coordinator cost them?

Coordinator and agents apply `contracts.governance.limits` to the model of the escrow, whose state
each sees some rounds late. Budget and bucket may be short, and the pay of a round may rise.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance import limits
from contracts.governance.escrow import Budget, Channel, FundingTerms
from contracts.governance.limits import KEPT_ROUNDS, Accrual, Idle
from contracts.terms.ids import ZERO_ADDRESS, Address
from tests.support import escrow_model as model

WORKERS = ("worker", "friend", "stranger")
ADDRESSES = {who: Address(who.encode().ljust(20)) for who in WORKERS}
NAMES = {account: who for who, account in ADDRESSES.items()}
STAKE = 5_000_000
SECONDS = 10  # of a round


@dataclass
class Swarm:
    """A job of three accounts whose rounds are sealed one after the other."""

    draw: Random
    confirming: int  # rounds
    period: int
    window: int
    planned: int  # base units that an account earns in a round at most, at first
    factor: int = 1  # by which that rises after `RISE` rounds
    funded: int = 10**12
    rate: int = 10**12
    escrow: model.Escrow = field(default_factory=lambda: model.new_escrow(1000))
    totals: dict[str, list[int]] = field(default_factory=lambda: {who: [0] for who in WORKERS})
    idle: list[tuple[int, str, Idle]] = field(default_factory=list)
    troubled: set[int] = field(default_factory=set)
    """Rounds before which not all could be granted, or in which somebody's pay rose."""
    round: int = 0
    last_vesting: int = 10**9  # round after which nothing vests

    RISE = 15

    def __post_init__(self) -> None:
        job = self.escrow.jobs[0]
        job.funded, job.rate = self.funded, self.rate
        for who in WORKERS:
            self.escrow.bond(0, who, STAKE)
        self.seen = deque([self.chain()] * (self.confirming + 1), maxlen=self.confirming + 1)

    @property
    def lag(self) -> int:
        """Rounds."""
        return limits.lag(self.window, 3)

    def earnings(self, who: str) -> Accrual:
        """By the newest seal."""
        totals = self.totals[who]
        vested = totals[max(0, min(len(totals) - 1 - self.window, self.last_vesting))]
        return Accrual(totals[-1], vested, 0, limits.round_pay(totals, self.planned, self.lag))

    def chain(self) -> tuple[Budget, dict[Address, Channel]]:
        """The job as the escrow has it now."""
        job = self.escrow.jobs[0]
        bucket = (job.allowance, job.since) if job.since else (0, 0)
        return Budget(job.funded, job.committed, job.closed_at, *bucket), {
            ADDRESSES[who]: Channel(it.limit, it.claimed, it.earned, it.stake, it.end)
            for who, it in job.members.items()
            if who in ADDRESSES
        }

    def why_idle(self, who: str) -> Idle | None:
        """By what the account sees, some rounds late."""
        budget, members = self.seen[0]
        member = members[ADDRESSES[who]]
        return limits.why_idle(self.earnings(who), member, budget, stake=STAKE, lag_rounds=self.lag)

    def grant(self) -> None:
        """What the coordinator does before a round; it knows what it has sent itself."""
        budget, members = self.chain()
        terms = FundingTerms(ZERO_ADDRESS, model.BURST, self.rate)
        available = min(budget.allowance_at(terms, self.escrow.now), budget.free)
        earnings = {ADDRESSES[who]: self.earnings(who) for who in WORKERS}
        rounds = limits.rounds_ahead(self.period, self.confirming)
        kept = 2 * (KEPT_ROUNDS + 1 + self.confirming)
        least = sum(
            max(0, pay.earned + kept * pay.round - members[account].limit)
            for account, pay in earnings.items()
        )
        if least > available:
            self.troubled.add(self.round)
        due = limits.limits_to_grant(earnings, members, rounds, available)
        before = self.escrow.jobs[0].committed
        self.escrow.grant(0, [(NAMES[each.account], each.limit) for each in due])
        grown = sum(each.limit - members[each.account].limit for each in due)
        assert self.escrow.jobs[0].committed - before == grown  # nothing was skipped

    def play(self, rounds: int, *, granted: bool = True) -> None:
        """Seal rounds; without `granted` the coordinator raises nothing."""
        for _ in range(rounds):
            if granted:
                self.grant()
            most = self.planned * (self.factor if self.round >= self.RISE else 1)
            for who, totals in self.totals.items():
                why = self.why_idle(who)
                if why is not None:
                    self.idle.append((self.round, who, why))
                before = self.earnings(who).round
                done = self.draw.choice((0, self.draw.randrange(most), most))
                totals.append(totals[-1] + (0 if why else done))
                if self.earnings(who).round > before:
                    self.troubled.add(self.round)
            self.escrow.wait(SECONDS)
            self.round += 1
            self.seen.append(self.chain())


steady = st.builds(
    Swarm,
    st.randoms(use_true_random=False),
    confirming=st.integers(0, 12),
    period=st.integers(1, 30),
    window=st.integers(0, 40),
    planned=st.integers(1, 50_000),
)
tight = st.builds(
    Swarm,
    st.randoms(use_true_random=False),
    confirming=st.integers(0, 6),
    period=st.sampled_from((1, 8, 60, 10_000)),
    window=st.integers(0, 40),
    planned=st.integers(1, 150_000),
    factor=st.sampled_from((1, 3, 10)),
    funded=st.integers(0, 60_000_000),
    rate=st.sampled_from((1, 10**7, 10**8, 10**9)),
)


@given(steady)
def test_limits__enough_budget_and_honest_parties__all_work_once_the_first_grants_are_confirmed(
    swarm: Swarm,
) -> None:
    swarm.play(80)

    first = swarm.confirming + 1
    assert [each for each in swarm.idle if each[0] >= first] == []
    for who, totals in swarm.totals.items():
        assert totals[-1] <= swarm.escrow.jobs[0].members[who].limit


@given(tight)
def test_limits__budget_or_bucket_is_short_or_pay_rises__nobody_waits_while_there_is_enough(
    swarm: Swarm,
) -> None:
    swarm.play(100)

    settling = 2 * swarm.confirming + 3
    troubled = swarm.troubled | {0}
    for at, who, why in swarm.idle:
        assert why == "no_limit", (at, who)
        assert troubled & set(range(at - settling, at + 1)), (at, who)


@given(steady, st.integers(0, 60))
def test_limits__coordinator_raises_none_any_more__all_that_is_earned_can_be_paid(
    swarm: Swarm, rounds: int
) -> None:
    swarm.play(rounds)
    swarm.play(40, granted=False)

    for who, totals in swarm.totals.items():
        assert totals[-1] <= swarm.escrow.jobs[0].members[who].limit


@given(steady)
def test_limits__nothing_vests_any_more__each_loses_at_most_the_pay_of_the_lag_and_a_round(
    swarm: Swarm,
) -> None:
    swarm.last_vesting = 20
    swarm.play(120)

    for who in WORKERS:
        assert swarm.earnings(who).at_risk <= (swarm.lag + 1) * swarm.planned


@given(steady)
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
