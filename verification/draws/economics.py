"""How often is a peer-step done again, given what its peer would lose by it? Pure.

The audit rate follows the money at risk (docs/protocol.md 7):

    q = max(floor, m x v / ((S + U + v) x d)),    d = (1 - phi + phi x r) x detection

v is the value of the peer-step, S the stake that a conviction takes, U the pay that it forfeits
beside v, m the margin above break-even. d is the chance that a falsified peer-step is found once it
is drawn: phi is the largest owner's part among those who may audit it, and a friend's report is
found only if an outside auditor repeats it, one in 1/r. A peer is given no more than q <= 1 covers.

Invariant: while q <= 1, the chance to be found times all that is lost is at least m times what a
cheat gains, to the base unit. Rounding goes against the cheat: v up, U down, what a router may hand
out down, a stake that is asked for up; rates are exact rationals. Units: base units, model FLOPs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from contracts.terms.amounts import (
    FLOPS_PER_PFLOP,
    UINT96_MAX,
    BaseUnits,
    Flops,
    PricePerPflop,
    pay_for,
)
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, StepNumber
from contracts.terms.messages import MILLION, AuditSpec

CERTAIN = Fraction(1)
MAX_UNDRAWN = 4
"""Steps that may wait for their beacon while work goes on."""
MOST_AT_ONCE = MAX_UNDRAWN + 2
"""Steps that audits may be needed for: those, one whose beacon has just come, and the next one."""
WATCHED_RATE = Fraction(1, 2)
WATCHED_PEER_STEPS = 20
"""Peer-steps after a draw that settled as unrepeated, in which q is at least `WATCHED_RATE`."""


@dataclass(frozen=True)
class Terms:
    """The job's numbers of checking, as rationals."""

    floor: Fraction  # q of a peer-step, at least
    sums: Fraction  # q of an averaged chunk
    repeats: Fraction  # r: of the reports, by an outside auditor
    margin: Fraction  # m, at least 1
    detection: Fraction  # chance that one replay finds a falsified peer-step
    window: int  # W: steps between being earned and vesting


def terms_of(audit: AuditSpec, window: int) -> Terms:
    """The terms that a job's poster has signed."""
    return Terms(
        floor=Fraction(audit.floor, MILLION),
        sums=Fraction(audit.sums, MILLION),
        repeats=Fraction(audit.repeats, MILLION),
        margin=Fraction(audit.margin, MILLION),
        detection=Fraction(audit.detection, MILLION),
        window=window,
    )


# ------------------------------------------------------------------------------ money at risk


def value(work: Flops, price: PricePerPflop) -> BaseUnits:
    """v: what `work` earns at most, rounded up.

    Pay is rounded down over all that a lease ever did, so one step's pay is this or one less.
    """
    return BaseUnits(-(-work * price // FLOPS_PER_PFLOP))


def most_work(worth: BaseUnits, price: PricePerPflop) -> Flops:
    """The most FLOPs whose `value` is not above `worth`."""
    return Flops(worth * FLOPS_PER_PFLOP // price)


def waiting(
    work: Mapping[StepNumber, Flops], price: PricePerPflop, *, step: StepNumber, window: int
) -> BaseUnits:
    """U: what a peer earned in the `window` steps before `step`, rounded down.

    Pay that waits longer must not count. It waits only for draws of steps before `step` to settle,
    and has vested by the time that a cheat in `step` is convicted.

    Args:
        work: What the peer earned and is not frozen, by the step whose seal holds it; other steps
            may be among them.
        price: Of its lease.
        step: t, of the peer-step that is drawn.
        window: W.
    """
    recent = sum(flops for earned_in, flops in work.items() if step - window <= earned_in < step)
    return pay_for(Flops(recent), price)


# ---------------------------------------------------------------------------- who would see it


def largest_owner(weights: Mapping[Address, int]) -> Fraction | None:
    """Phi: the largest owner's part of the eligible auditors; None if there is nobody.

    Raises:
        InvariantBroken: a weight is not positive.
    """
    if any(weight <= 0 for weight in weights.values()):
        raise InvariantBroken("an auditor's weight must be positive")
    if not weights:
        return None
    return Fraction(max(weights.values()), sum(weights.values()))


def power(terms: Terms, phi: Fraction | None) -> Fraction:
    """d: the chance that a falsified peer-step is found once it is drawn.

    Args:
        terms: Of the job.
        phi: The part of the eligible auditors that may be friends of the cheat; None where nobody
            in the stage is eligible, so that an outside auditor replays it at once.
    """
    if phi is None:
        return terms.detection
    return (1 - phi + phi * terms.repeats) * terms.detection


# ----------------------------------------------------------------------------------- the rate


def needed(
    terms: Terms, least: Fraction, value: int, beside: int, power: Fraction
) -> Fraction | None:
    """`least`, or what makes losing `beside` + `value` m times as dear as a cheat is sweet.

    Above 1 the peer was given more than it can answer for. None if no rate is enough, because what
    is drawn is never found (`power` is zero).
    """
    if not value:
        return least
    if not power:
        return None
    return max(least, terms.margin * value / ((beside + value) * power))


def rate(
    terms: Terms, *, value: BaseUnits, stake: BaseUnits, waiting: BaseUnits, power: Fraction
) -> Fraction:
    """q: the chance with which a peer-step is drawn."""
    return _capped(needed(terms, terms.floor, value, stake + waiting, power))


def forced(
    rate: Fraction, *, above_gate: bool = False, since_unrepeated: int | None = None
) -> Fraction:
    """q of a peer-step whose peer has given a reason to look.

    Args:
        rate: What the money at risk asks for.
        above_gate: The norm gate names it: it is drawn for certain.
        since_unrepeated: Peer-steps that this peer has committed since a draw of its settled as
            unrepeated, 0 for the first; None if none did.
    """
    if above_gate:
        return CERTAIN
    if since_unrepeated is not None and since_unrepeated < WATCHED_PEER_STEPS:
        return max(rate, WATCHED_RATE)
    return rate


def repeat_rate(
    terms: Terms, *, value: BaseUnits, stake: BaseUnits, waiting: BaseUnits
) -> Fraction:
    """The chance with which a report that earned its auditor `value` is repeated outside.

    At least r, which is what the `power` of the audits counts on. A report is paid work too: an
    auditor who has less to lose than (m / (r x detection) - 1) v would otherwise gain by signing
    a match unseen. A report on a sum earns nothing, so r is enough.
    """
    return _capped(needed(terms, terms.repeats, value, stake + waiting, terms.detection))


def most_value(terms: Terms, *, stake: BaseUnits, waiting: BaseUnits, power: Fraction) -> BaseUnits:
    """The largest v that q <= 1 covers, rounded down: no more may be handed out in a step."""
    if terms.margin == power:  # both 1: to lose what one gains is enough, whatever it is
        return BaseUnits(UINT96_MAX)
    covered = floor((stake + waiting) * power / (terms.margin - power))
    return BaseUnits(min(UINT96_MAX, covered))


def least_stake(terms: Terms, *, value: BaseUnits, power: Fraction) -> BaseUnits | None:
    """The smallest S by which a newcomer, for whom nothing waits, may do `value`, rounded up.

    None if no stake is enough, because what is drawn is never found.
    """
    if not power:
        return None
    return BaseUnits(ceil(value * (terms.margin / power - 1)))


def stake_at_floor(terms: Terms, *, value: BaseUnits, power: Fraction) -> BaseUnits | None:
    """The smallest S by which a newcomer's q is the floor from its first step on, rounded up.

    None if there is none: what is drawn is never found, or there is no floor to come down to.
    """
    if not power or not terms.floor:
        return None
    return BaseUnits(max(0, ceil(value * (terms.margin / (power * terms.floor) - 1))))


@dataclass(frozen=True)
class StakeRange:
    """Stakes of a job; None where there is none (`least_stake`, `stake_at_floor`)."""

    least: BaseUnits | None
    at_floor: BaseUnits | None

    def within(self, reservable: BaseUnits) -> BaseUnits:
        """The stake that is best for a poster: no more than anybody gains by, or can reserve.

        Args:
            reservable: What enough providers can reserve; the least is asked for all the same.
        """
        least = self.least or BaseUnits(0)
        return least if self.at_floor is None else max(least, min(self.at_floor, reservable))


def stakes_among_equals(
    terms: Terms, *, item_flops: Sequence[Flops], units: int, price: PricePerPflop, owners: int
) -> StakeRange:
    """Stakes of a newcomer that does `units` units of the dearest stage.

    Args:
        terms: Of the job.
        item_flops: Of one unit, stage by stage.
        units: How many in one step.
        price: The highest that a lease may have.
        owners: In the stage, this one included, each of whom does as much; alone it is audited
            from outside.
    """
    found = power(terms, Fraction(1, owners - 1) if owners > 1 else None)
    worth = value(Flops(max(item_flops) * units), price)
    return StakeRange(
        least_stake(terms, value=worth, power=found),
        stake_at_floor(terms, value=worth, power=found),
    )


def audits_at_once(terms: Terms, flops: int) -> int:
    """FLOPs of audits that work of `flops` may need if all of it is drawn, rounded up.

    One replay each, and of those as many once more as outside auditors repeat.
    """
    return ceil(flops * (1 + terms.repeats))


def least_budget(terms: Terms, *, step_flops: int, steps: int, dearest: PricePerPflop) -> BaseUnits:
    """The smallest budget for audits by which no honest job ends early only for what may be drawn.

    Args:
        terms: Of the job.
        step_flops: Of a whole step.
        steps: Of the job; no more than `MOST_AT_ONCE` wait for their beacons or auditors.
        dearest: The most that anybody may be paid for an audit.
    """
    flops = audits_at_once(terms, step_flops * min(steps, MOST_AT_ONCE))
    return value(Flops(flops), dearest)


def _capped(wanted: Fraction | None) -> Fraction:
    return CERTAIN if wanted is None else min(CERTAIN, wanted)
