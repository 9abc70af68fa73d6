"""How fast may a coordinator set a job's budget aside for workers, and what stake covers? Pure.

A limit of an account on the chain is what it can be paid at most; the coordinator grants limits out
of a bucket that holds `burst` at first and refills by `rate` an hour. That is what a lying
coordinator could give to friends before its poster closes the job, so both are no larger than the
work needs. Amounts are base units. Source: contracts/governance/limits.py, which grants.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from contracts.governance.limits import (
    KEPT_ROUNDS,
    REPORT_ROUNDS,
    lag_of,
    planned_round,
    rounds_ahead,
)
from contracts.terms.amounts import UINT80_MAX, BaseUnits, Flops, pay_for
from contracts.terms.messages import JobSpec

ROOM = Fraction(5, 4)
"""For providers that come and go: of what is planned, so much is granted, or deposited."""
HOUR = 3600
LAST_ROUNDS = KEPT_ROUNDS + 1
"""Rounds of pay beyond a job's own that limits must have room for: else its last steps wait."""


@dataclass(frozen=True)
class Funding:
    """What follows from a job's work for its limits and stakes."""

    round: BaseUnits  # planned pay of an account with one machine in a round
    rounds: int  # that a first limit has room for
    first_limits: BaseUnits  # of all members, spares and auditors
    last_room: BaseUnits  # that limits must leave when the last step begins
    an_hour: BaseUnits  # planned pay of all
    lag_pay: BaseUnits  # of an account, that may wait at once: what a liar could cost
    burst: BaseUnits
    rate: BaseUnits


def taken(seconds: int | None, left: int) -> int:
    """Seconds that a job is taken to compute.

    Args:
        seconds: As the market says: a lower bound; None: nothing matches now.
        left: Until the deadline, of which then a tenth is taken, an hour at most.
    """
    return max(1, min(left // 10, HOUR) if seconds is None else seconds)


def funding_of(spec: JobSpec, seconds: int) -> Funding:
    """What the bucket of a job has to hold, at the price ceiling.

    Args:
        spec: The job.
        seconds: Of its computing (see `taken`). It takes longer, so the bucket refills in time.
    """
    batch, audit, price = spec.batch, spec.rules.audit, spec.price_ceiling
    one = planned_round(spec, [price])
    ahead = rounds_ahead(ceil(HOUR * batch.steps / seconds), spec.confirmations)
    rounds = min(batch.steps + LAST_ROUNDS, ahead)
    members = batch.stages * batch.peers_per_stage + batch.spares
    of_audits = 0 if audit is None else audit.budget
    # Nobody knows how many will audit from outside: as many as work here, and what audits may cost.
    first = members * one * rounds + min(members * REPORT_ROUNDS * one, of_audits)
    work = pay_for(Flops(sum(spec.item_flops) * batch.units_per_step * batch.steps), price)
    an_hour = ceil(Fraction((work + of_audits) * HOUR, seconds))
    return Funding(
        round=BaseUnits(one),
        rounds=rounds,
        first_limits=BaseUnits(first),
        last_room=BaseUnits(members * one * LAST_ROUNDS),
        an_hour=BaseUnits(an_hour),
        lag_pay=BaseUnits(lag_of(spec) * one),
        burst=BaseUnits(min(ceil(ROOM * first), spec.budget)),
        rate=BaseUnits(max(1, min(ceil(ROOM * an_hour), UINT80_MAX))),
    )
