"""What would this job cost, how long would it take, and would it be matched now? Pure.

A quote reserves nothing. Seconds are of stages as clearing would deal the winners; they take the
FLOPs/s that they claim and count computing alone, so they are a lower bound.
"""

from collections.abc import Sequence

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NoMatch, Refused
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import QuoteView, StageQuoteView
from market.domain.admission import (
    Surroundings,
    check_terms,
    least_budget_at,
    least_epoch_cap,
    num_epochs,
    signed_terms,
)
from market.domain.advice import WhyNot, why_no_bundle
from market.domain.auction import Ask, Clearing
from market.domain.bundles import bundle_of, buy, deal
from market.domain.matching import Judged, Need, asks_of, judge
from market.domain.offers import Candidate
from market.domain.pricing import job_cost, job_flops, stage_seconds
from training.config import slices_of, train_config
from training.memory import peer_memory
from verification.distances.thresholds import Calibration


def need_of(spec: JobSpec, now: UnixMillis, calibration: Calibration) -> Need:
    """What the job asks of an offer; of its device too, if it is checked (docs/protocol.md 5)."""
    devices = None
    if spec.rules.audit is not None:
        devices = frozenset(filter(calibration.admits, calibration.classes))
    return Need(spec.price_ceiling, spec.memory_bytes, spec.min_stake, spec.deadline, now, devices)


def quote(
    spec: JobSpec, offers: Sequence[Candidate], around: Surroundings, now: UnixMillis
) -> QuoteView:
    """Try admission and clearing without effect."""
    need, bundle = need_of(spec, now, around.calibration), bundle_of(spec)
    judged = judge(need, offers)
    asks = asks_of(judged)
    tried, unmatched = _try_clear(asks, spec), WhyNot()
    cleared = None if isinstance(tried, NoMatch) else tried
    reasons = _reasons(spec, around)
    if isinstance(tried, NoMatch):
        reasons.append(tried.message)
        unmatched = why_no_bundle(spec, need, judged, bundle)
    owners = len({ask.seller for ask in asks})
    stages = _stages(spec, cleared, offers)
    price = None if cleared is None else cleared.price
    terms = signed_terms(spec, now)
    return QuoteView(
        fits=not reasons and not around.missing,
        flops=job_flops(spec),
        cost_at_ceiling=job_cost(spec, spec.price_ceiling),
        cost_at_asks=None if price is None else job_cost(spec, price),
        price_at_asks=price,
        lowest_losing_ask=price if cleared and owners > len(cleared.winners) else None,
        seconds=max((each.seconds for each in stages if each.seconds is not None), default=None),
        reasons=tuple(reasons),
        missing=around.missing,
        not_matched=unmatched.exclusions,
        advice=unmatched.shown_advice(),
        verification_budget=BaseUnits(0 if (it := spec.rules.audit) is None else it.budget),
        budget_needed=least_budget_at(spec, spec.price_ceiling),
        epochs=num_epochs(spec.deadline, around.now, around.epoch_seconds),
        epoch_cap_needed=least_epoch_cap(spec, terms, around.epoch_seconds),
        offers=len(offers),
        owners=owners,
        slots=bundle.slots,
        spares=None if cleared is None else len(cleared.winners) - bundle.slots,
        reservable=reservable_stake(judged, bundle.slots),
        stages=stages,
    )


def reservable_stake(judged: Sequence[Judged], slots: int) -> BaseUnits | None:
    """The most that a job of so many slots may ask as stake of twice as many owners.

    Owners count whose offer fits, but perhaps for its stake. If there are fewer than twice the
    slots, it is what all of them can reserve; None if there are not even enough.
    """
    free: dict[Address, BaseUnits] = {}
    for offer, failed in judged:
        if set(failed) <= {"stake"}:
            free[offer.account] = max(free.get(offer.account, BaseUnits(0)), offer.free_stake)
    stakes = sorted(free.values(), reverse=True)
    return stakes[min(len(stakes), 2 * slots) - 1] if len(stakes) >= max(1, slots) else None


def _reasons(spec: JobSpec, around: Surroundings) -> list[str]:
    try:
        check_terms(spec, around)
    except Refused as refusal:
        return [refusal.message]
    return []


def _try_clear(asks: Sequence[Ask], spec: JobSpec) -> Clearing | NoMatch:
    try:
        return buy(asks, bundle_of(spec), (), reserve=spec.price_ceiling, all_or_nothing=True)
    except NoMatch as refusal:
        return refusal


def _speeds(
    spec: JobSpec, cleared: Clearing, offers: Sequence[Candidate]
) -> tuple[tuple[int, ...], ...]:
    """FLOP/s of the winners, stage by stage, as clearing would deal them."""
    offered = {offer.offer: offer.flops_per_second for offer in offers}
    speeds = [offered[ask.offer] for ask in cleared.winners]
    stages = deal(speeds, (), num_stages=spec.batch.stages)
    return tuple(
        tuple(speed for stage, speed in zip(stages, speeds, strict=True) if stage == number)
        for number in range(spec.batch.stages)
    )


def _stages(
    spec: JobSpec, cleared: Clearing | None, offers: Sequence[Candidate]
) -> tuple[StageQuoteView, ...]:
    """Stage by stage; nothing where no model can be made of the numbers."""
    try:
        config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
        slices = slices_of(config, spec.batch.layer_ends)
    except Refused:
        return ()
    if len(spec.unit_flops) != len(slices):
        return ()
    speeds = None if cleared is None else _speeds(spec, cleared, offers)
    seconds = None if speeds is None else stage_seconds(spec, [sum(each) for each in speeds])
    rows, audits = spec.batch.rows_per_unit, spec.rules.audit is not None
    found = []
    for number, each in enumerate(slices):
        memory = peer_memory(config, each, rows, audits=audits)
        found.append(
            StageQuoteView(
                first_layer=each.first_layer,
                end_layer=each.end_layer,
                unit_flops=spec.unit_flops[number],
                memory_bytes=memory,
                offers_with_memory=sum(offer.memory_bytes >= memory for offer in offers),
                peers=None if speeds is None else len(speeds[number]),
                flops_per_second=None if speeds is None else sum(speeds[number]),
                seconds=None if seconds is None else seconds[number],
            )
        )
    return tuple(found)
