"""How much of a budget is set aside for whom, and when an account works on. Pure.

Coordinator and agent each apply these rules to what they see: the newest seal, and the escrow at a
block with the job's confirmations. So neither works on trust: the agent stops before work that no
seal could pay, the coordinator assigns none to those who would stop. A round is a sealed step.
Amounts are base units. Source: contracts/solidity/README.md.
"""

import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.governance.escrow import Budget, Channel
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import UINT80_MAX, BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.escrow_messages import Limit
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec

AHEAD_ROUNDS = 8
"""Rounds for which a limit leaves room at least, when it is raised."""
KEPT_ROUNDS = 2
"""Rounds that must still fit under the limit for work to begin."""
REPORT_ROUNDS = 4
"""For which the limit of an outside auditor leaves room: reports on whole claims."""
RECENT_ROUNDS = 25
LAG_ROUNDS = 5
"""Rounds that vesting may take beyond its window and the deadline of audits."""

Idle: TypeAlias = Literal["ended", "no_bond", "no_limit", "unvested"]
"""Why an account does not work: its end, too little stake, too low a limit, too much unvested."""


@dataclass(frozen=True)
class Accrual:
    """What an account has earned in a job by the newest seal, all of its machines together."""

    earned: int
    vested: int
    forfeited: int  # of what was earned, by verdicts that whoever decides has checked
    round: int  # see `round_pay`

    @property
    def at_risk(self) -> int:
        """What is lost if no further seal comes."""
        return self.earned - self.vested - self.forfeited


def round_pay(earned: Sequence[int], planned: int, lag_rounds: int) -> int:
    """The most that an account earned in one round of late.

    Late is as long as pay may lack vesting, `RECENT_ROUNDS` at least: else work that has become
    smaller would make what waits look like too much.

    Args:
        earned: Its total after each seal, oldest first, from the one before its first round on.
        planned: What the plan of the job says; counts where none of them earned anything.
        lag_rounds: See `lag`.
    """
    recent = earned[-max(RECENT_ROUNDS, lag_rounds) - 1 :]
    rounds = [after - before for before, after in itertools.pairwise(recent)]
    return max(rounds, default=0) or planned


def planned_round(spec: JobSpec, prices: Iterable[PricePerPflop]) -> int:
    """What an account earns in a round, as the plan has it, with a machine at each of `prices`.

    The stage of a machine is not known before it joins: it counts as of the one with most work.
    Where work is checked it audits as much as it works, at most, which is paid alike. Rounded up:
    totals are rounded down, so a round may pay a base unit more than the one before.
    """
    batch = spec.batch
    units = -(-batch.units_per_step // batch.peers_per_stage) * (2 if spec.rules.audit else 1)
    work = Flops(max(spec.item_flops) * units)
    return sum(pay_for(work, price) + 1 for price in prices)


def lag(window: int, deadline: int) -> int:
    """Rounds that pay may lack vesting where all goes well: W, D and a few more."""
    return window + deadline + LAG_ROUNDS


def lag_of(spec: JobSpec) -> int:
    """See `lag`: of the job."""
    audit = spec.rules.audit
    return lag(spec.rules.vesting_window, audit.deadline if audit else 0)


class PayHistory:
    """Pay of all accounts by the newest seals, as far back as `round_pay` looks."""

    def __init__(self, lag_rounds: int) -> None:
        self._lag = lag_rounds
        self._earned = deque[Mapping[Address, int]](maxlen=max(RECENT_ROUNDS, lag_rounds) + 1)
        self._newest: Mapping[Address, PayLeaf] = {}
        self._forfeited: Mapping[Address, int] = {}

    def add(self, pay: Iterable[PayLeaf], forfeited: Mapping[Address, int]) -> None:
        """Take what the next seal says; what is there before the first, too, is nothing."""
        self._newest = {leaf.account: leaf for leaf in pay}
        self._earned.append({leaf.account: leaf.earned for leaf in self._newest.values()})
        self._forfeited = forfeited

    def accrual(self, account: Address, planned: int) -> Accrual:
        """What an account has earned; `planned`: see `round_pay`."""
        leaf = self._newest.get(account)
        earned, vested = (leaf.earned, leaf.vested) if leaf else (0, 0)
        totals = [each.get(account, 0) for each in self._earned]
        most = round_pay(totals, planned, self._lag)
        return Accrual(earned, vested, self._forfeited.get(account, 0), most)


def rounds_ahead(period: int, confirming: int) -> int:
    """Rounds for which a limit leaves room when it is raised.

    A raise is due when half of that is left, may be seen a round later, and counts when it is
    confirmed; then there must still be room for `KEPT_ROUNDS`.

    Args:
        period: Rounds between two grants: an hour's at first, a day's later.
        confirming: Rounds until what was sent is confirmed.
    """
    return max(AHEAD_ROUNDS, period, 2 * (KEPT_ROUNDS + 1 + confirming))


def why_idle(
    pay: Accrual, channel: Channel, budget: Budget, *, stake: int, lag_rounds: int
) -> Idle | None:
    """Why the account does not begin another round; None where it does.

    So it loses at most the pay of `lag_rounds` rounds and of the one that it is in, each counted as
    the largest of late: one large round lets many small ones wait.

    Args:
        pay: Of the account.
        channel: Of the account, at a confirmed block.
        budget: Of the job, at that block.
        stake: What the account's leases and the job ask for.
        lag_rounds: See `lag`.
    """
    if channel.end or budget.closed_at:
        return "ended"
    if channel.stake < stake:
        return "no_bond"
    if not pay.round or pay.earned + KEPT_ROUNDS * pay.round > channel.limit:
        return "no_limit"
    if pay.at_risk > lag_rounds * pay.round:
        return "unvested"
    return None


def may_stay(pay: Accrual, channel: Channel, *, lag_rounds: int) -> bool:
    """Whether an account that has `no_limit` may wait where it works for a grant to come.

    Its coordinator gives it no work meanwhile, and audits may bring it above its limit. It leaves
    when more than the pay of `lag_rounds` is above that: no more than it risks otherwise.
    """
    most = max(pay.at_risk, pay.earned - channel.limit)
    return pay.earned > 0 and most <= lag_rounds * pay.round


_Due: TypeAlias = tuple[float, Address, Accrual, int]  # part of its room that is left; its limit


def limits_to_grant(
    earnings: Mapping[Address, Accrual],
    channels: Mapping[Address, Channel],
    rounds: int,
    available: int,
) -> tuple[Limit, ...]:
    """Limits that are due to be raised, most urgent first; a grant holds 256 of them.

    A limit leaves room for `rounds` rounds, and is raised when half of that is used. Where less is
    available all get room for the same lower number of rounds, as the contract would skip what does
    not fit whole; room in which no round begins is not granted.

    Args:
        earnings: Of the accounts that work or are about to.
        channels: As the chain has them, with the grants that are on their way.
        rounds: See `rounds_ahead`; no more than the job has left.
        available: What bucket and budget allow now.
    """
    due = list[_Due]()
    for account, pay in earnings.items():
        channel = channels.get(account, Channel())
        left, room = channel.limit - pay.earned, rounds * pay.round
        if room and not channel.end and 2 * left <= room:
            due.append((left / room, account, pay, channel.limit))

    def missing(number: int) -> int:
        return sum(max(0, pay.earned + number * pay.round - limit) for _, _, pay, limit in due)

    if rounds < KEPT_ROUNDS:
        return ()
    due.sort()
    if missing(KEPT_ROUNDS) > available:
        due, fitting = _fitting(due, available), KEPT_ROUNDS
    else:
        fitting = bisect_right(range(rounds + 1), available, key=missing) - 1
    wanted = [(account, pay.earned + fitting * pay.round, limit) for _, account, pay, limit in due]
    return tuple(_limit(account, most) for account, most, limit in wanted if most > limit)


def _fitting(due: Sequence[_Due], available: int) -> list[_Due]:
    """Those who find room for the rounds without which none begins; first who has worked."""
    found = list[_Due]()
    for each in sorted(due, key=lambda each: (not each[2].earned, each[0])):
        _, _, pay, limit = each
        need = max(0, pay.earned + KEPT_ROUNDS * pay.round - limit)
        if need <= available:
            available -= need
            found.append(each)
    return found


def limits_owed(
    earnings: Mapping[Address, Accrual], channels: Mapping[Address, Channel]
) -> tuple[Limit, ...]:
    """Limits that are below what was earned, when nobody works any more."""
    return tuple(
        _limit(account, pay.earned)
        for account, pay in sorted(earnings.items())
        if (channel := channels.get(account, Channel())).limit < pay.earned and not channel.end
    )


def _limit(account: Address, most: int) -> Limit:
    return Limit(account=account, limit=BaseUnits(min(most, UINT80_MAX)))
