"""What would this job cost, how long would it take, and would it be matched now? Pure.

A quote reserves nothing. `seconds` takes the FLOPs/s that the winning offers claim and counts
computing alone, so it is a lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.errors import NoMatch, Refused
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.domain.admission import Surroundings, check_job
from market.domain.auction import Ask, Clearing, clear
from market.domain.matching import Exclusion, Need, feasible, why_not
from market.domain.offers import Candidate
from market.domain.pricing import expected_seconds, job_cost, job_flops


@dataclass(frozen=True)
class Quote:
    """A dry run; `reasons` says why the job would not be admitted or matched now."""

    fits: bool
    flops: Flops
    cost_at_ceiling: BaseUnits
    cost_at_asks: BaseUnits | None
    price_at_asks: PricePerPflop | None
    seconds: int | None
    reasons: tuple[str, ...]
    not_matched: tuple[Exclusion, ...]


def need_of(spec: JobSpec, now: UnixMillis) -> Need:
    """What the job asks of an offer."""
    return Need(spec.price_ceiling, spec.memory_bytes, spec.min_stake, spec.deadline, now)


def num_slots(spec: JobSpec) -> int:
    """How many leases the job needs."""
    return spec.batch.stages * spec.batch.peers_per_stage


def quote(
    spec: JobSpec, offers: Sequence[Candidate], around: Surroundings, now: UnixMillis
) -> Quote:
    """Try admission and clearing without effect."""
    need, reasons = need_of(spec, now), []
    try:
        check_job(spec, around)
    except Refused as refusal:
        reasons.append(refusal.message)
    cleared = _try_clear(feasible(need, offers), spec)
    if isinstance(cleared, str):
        reasons.append(cleared)
        price, seconds = None, None
    else:
        price, seconds = cleared.price, _seconds(spec, cleared, offers)
    return Quote(
        fits=not reasons,
        flops=job_flops(spec),
        cost_at_ceiling=job_cost(spec, spec.price_ceiling),
        cost_at_asks=None if price is None else job_cost(spec, price),
        price_at_asks=price,
        seconds=seconds,
        reasons=tuple(reasons),
        not_matched=() if price is not None else why_not(need, offers),
    )


def _try_clear(asks: Sequence[Ask], spec: JobSpec) -> Clearing | str:
    try:
        return clear(asks, slots=num_slots(spec), reserve=spec.price_ceiling)
    except NoMatch as refusal:
        return refusal.message


def _seconds(spec: JobSpec, cleared: Clearing, offers: Sequence[Candidate]) -> int:
    winners = {ask.offer for ask in cleared.winners}
    return expected_seconds(spec, min(o.flops_per_second for o in offers if o.offer in winners))
