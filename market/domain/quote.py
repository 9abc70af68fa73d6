"""What would this job cost, how long would it take, and would it be matched now? Pure.

A quote reserves nothing. `seconds` is of the slowest stage, dealt as clearing would deal the
winners; it takes the FLOPs/s that they claim and counts computing alone, so it is a lower bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.errors import NoMatch, Refused
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.domain.admission import Surroundings, check_job
from market.domain.auction import Ask, Clearing
from market.domain.bundles import Bundle, bundle_of, buy, deal
from market.domain.matching import Exclusion, Need, feasible, why_not
from market.domain.offers import Candidate
from market.domain.pricing import expected_seconds, job_cost, job_flops
from verification.thresholds import Calibration


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


def need_of(spec: JobSpec, now: UnixMillis, calibration: Calibration) -> Need:
    """What the job asks of an offer; of its device too, if it is checked (PROTOCOL section 5)."""
    devices = None
    if spec.rules.audit is not None:
        devices = frozenset(filter(calibration.admits, calibration.classes))
    return Need(spec.price_ceiling, spec.memory_bytes, spec.min_stake, spec.deadline, now, devices)


def why_no_bundle(
    need: Need, offers: Sequence[Candidate], missing: Bundle
) -> tuple[Exclusion, ...]:
    """Why a bundle is not complete: `why_not`, after how many owners would do and how many fit."""
    asks = feasible(need, offers)
    owners = len({ask.seller for ask in asks})
    short = Exclusion("owners", len(asks), f"needs {missing.slots} owners, {owners} fit")
    return ((short,) if 1 < missing.slots > owners else ()) + why_not(need, offers)


def quote(
    spec: JobSpec, offers: Sequence[Candidate], around: Surroundings, now: UnixMillis
) -> Quote:
    """Try admission and clearing without effect."""
    need, reasons = need_of(spec, now, around.calibration), []
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
        not_matched=() if price is not None else why_no_bundle(need, offers, bundle_of(spec)),
    )


def _try_clear(asks: Sequence[Ask], spec: JobSpec) -> Clearing | str:
    try:
        return buy(asks, bundle_of(spec), (), reserve=spec.price_ceiling, all_or_nothing=True)
    except NoMatch as refusal:
        return refusal.message


def _seconds(spec: JobSpec, cleared: Clearing, offers: Sequence[Candidate]) -> int:
    offered = {offer.offer: offer.flops_per_second for offer in offers}
    speeds = [offered[ask.offer] for ask in cleared.winners]
    stages = deal(speeds, (), num_stages=spec.batch.stages)
    sums = [0] * spec.batch.stages
    for stage, speed in zip(stages, speeds, strict=True):
        sums[stage] += speed
    return expected_seconds(spec, sums)
