"""What does checking cost a job, and what would lower it? Pure.

The audits that are to be expected follow from the JobSpec by the formulas of
`verification/draws/economics.py`, for peers that do equal parts of their stages. The newcomers'
phase is the first `vesting_window` steps of a lease, in which less pay waits that a cheat would
lose. Shares are in millionths of the job's own work; amounts in base units.
"""

from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from math import ceil

from contracts.terms.amounts import Flops, PricePerPflop, in_tokens, pay_for
from contracts.terms.messages import MILLION, AuditSpec, JobSpec
from market.bodies.base import Body, Money, Wide
from verification.draws.economics import power, rate, stake_at_floor, terms_of, value

WORTH_SAYING = Fraction(9, 10)
"""A change is named if it leaves at most this part of the extra work."""


class CheckingPlan(Body):
    """How much of the work would be done again."""

    floor: int
    first_rate: int
    later_rate: int
    expected_extra_flops: Wide
    expected_extra: int
    later_extra: int  # after the newcomers' phase
    expected_cost: Money
    expected_seconds: int | None  # of computing, beside the work; None: nothing matches now
    cheaper: tuple[str, ...]  # what would lower it, in words


def checking_plan(
    spec: JobSpec, price: PricePerPflop, *, seconds: int | None = None
) -> CheckingPlan | None:
    """What checking is expected to cost; None if the job is not checked.

    Args:
        spec: The job.
        price: That a PFLOP would cost, in base units.
        seconds: That its computing takes.
    """
    audit = spec.rules.audit
    if audit is None:
        return None
    dearest, repeated = Flops(max(spec.item_flops)), 1 + Fraction(audit.repeats, MILLION)
    first, later = (
        _rate(spec, audit, dearest, price, steps) for steps in (0, spec.rules.vesting_window)
    )
    extra, share = _extra_flops(spec, audit, price), extra_share(spec, price)
    return CheckingPlan(
        floor=audit.floor,
        first_rate=ceil(first * MILLION),
        later_rate=ceil(later * MILLION),
        expected_extra_flops=ceil(extra),
        expected_extra=ceil(share * MILLION),
        later_extra=ceil(later * repeated * MILLION),
        expected_cost=value(Flops(ceil(extra)), price),
        expected_seconds=None if seconds is None else ceil(seconds * share),
        cheaper=tuple(_cheaper(spec, audit, price, share)),
    )


def checking_phrases(found: CheckingPlan) -> tuple[str, ...]:
    """What it costs in draws, compute, tokens and time, for a person."""
    time = found.expected_seconds
    return (
        f"{found.first_rate / MILLION:.2%} of a newcomer's steps are drawn, later "
        f"{found.later_rate / MILLION:.2%}",
        f"{found.expected_extra / MILLION:.2%} more work, {found.later_extra / MILLION:.2%} after "
        "the newcomers' first steps",
        f"about {in_tokens(found.expected_cost)} tokens"
        + ("" if time is None else f" and {timedelta(seconds=time)} of computing"),
    )


def extra_share(spec: JobSpec, price: PricePerPflop) -> Fraction:
    """Audits that are to be expected, as a part of the job's own work."""
    audit, batch = spec.rules.audit, spec.batch
    if audit is None:
        return Fraction(0)
    own = sum(spec.item_flops) * batch.units_per_step * batch.steps
    return _extra_flops(spec, audit, price) / own


def later_share(spec: JobSpec, price: PricePerPflop) -> Fraction:
    """The same after the newcomers' phase, of the dearest stage."""
    audit = spec.rules.audit
    if audit is None:
        return Fraction(0)
    later = _rate(spec, audit, Flops(max(spec.item_flops)), price, spec.rules.vesting_window)
    return later * (1 + Fraction(audit.repeats, MILLION))


def _work_of_a_peer(spec: JobSpec, unit: Flops) -> Flops:
    return Flops(unit * -(-spec.batch.units_per_step // spec.batch.peers_per_stage))


def _power(spec: JobSpec, audit: AuditSpec) -> Fraction:
    owners = spec.batch.peers_per_stage
    terms = terms_of(audit, spec.rules.vesting_window)
    return power(terms, Fraction(1, owners - 1) if owners > 1 else None)


def _rate(
    spec: JobSpec, audit: AuditSpec, unit: Flops, price: PricePerPflop, steps_waiting: int
) -> Fraction:
    """q of a peer that does an equal part of a stage and has worked so many steps before."""
    work = _work_of_a_peer(spec, unit)
    return rate(
        terms_of(audit, spec.rules.vesting_window),
        value=value(work, price),
        stake=spec.min_stake,
        waiting=pay_for(Flops(work * steps_waiting), price),
        power=_power(spec, audit),
    )


def _extra_flops(spec: JobSpec, audit: AuditSpec, price: PricePerPflop) -> Fraction:
    """FLOPs of all audits that are to be expected, step by step and stage by stage."""
    repeated = 1 + Fraction(audit.repeats, MILLION)
    window, steps = spec.rules.vesting_window, spec.batch.steps
    growing = min(window, steps)
    total = Fraction(0)
    for unit in spec.item_flops:
        rates = [_rate(spec, audit, unit, price, waiting) for waiting in range(growing)]
        rates_summed = sum(rates) + (steps - growing) * _rate(spec, audit, unit, price, window)
        total += unit * spec.batch.units_per_step * rates_summed
    return total * repeated


def _cheaper(
    spec: JobSpec, audit: AuditSpec, price: PricePerPflop, share: Fraction
) -> Iterator[str]:
    """Changes of the job file by which less of the work is done again, each with what is left."""
    for words, changed in _changes(spec, audit, price):
        if (then := extra_share(changed, price)) <= WORTH_SAYING * share:
            yield f"{words}: {float(then):.1%} instead of {float(share):.1%}"


def _changes(
    spec: JobSpec, audit: AuditSpec, price: PricePerPflop
) -> Iterator[tuple[str, JobSpec]]:
    batch, rules = spec.batch, spec.rules
    stake = stake_at_floor(
        terms_of(audit, rules.vesting_window),
        value=value(_work_of_a_peer(spec, Flops(max(spec.item_flops))), price),
        power=_power(spec, audit),
    )
    if stake is not None and stake > spec.min_stake:
        yield f"min_stake {in_tokens(stake)}", spec.model_copy(update={"min_stake": stake})
    if (units := batch.units_per_step // 2) >= batch.peers_per_stage and not batch.trains_replicas:
        smaller = batch.model_copy(update={"units_per_step": units, "steps": 2 * batch.steps})
        yield (
            f"steps {2 * batch.steps} of {units} units each",
            spec.model_copy(update={"batch": smaller}),
        )
    if (peers := 2 * batch.peers_per_stage) <= batch.units_per_step and not batch.trains_replicas:
        more = batch.model_copy(update={"peers_per_stage": peers})
        yield f"peers_per_stage {peers}", spec.model_copy(update={"batch": more})
    if (window := 4 * rules.vesting_window) < batch.steps:
        longer = rules.model_copy(update={"vesting_window": window})
        yield f"vesting_window {window}", spec.model_copy(update={"rules": longer})
