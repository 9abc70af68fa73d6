"""What would a job cost, how long would it take, would it be matched now, and if not: why? Pure.

A quote reserves nothing. Seconds are of stages as clearing would deal the winners; they take the
FLOPs/s that they claim and count computing alone, so they are a lower bound.

A relaxation is the least that a poster could change so that the whole bundle is matched now: one
change of the job, or two: a higher price ceiling, a lower stake, an earlier deadline, waiting for a
window to open, other stages or fewer peers in each. How large a change is, is said without a unit,
so that unlike ones compare: the part of what was asked that it gives up.

    ceiling c -> c'   (c' - c) / c             stake s -> s'   (s - s') / s
    deadline d -> d'  (d - d') / (d - now)     wait until t    (t - now) / (d - now)
    stages n -> n'    |n' - n| / n             peers p -> p'   (p - p') / p

The size of two changes is the sum of both. The least is found exactly, over all offers there are;
of equal ones that with fewer changes, then the first in the order above. Offers that fail what no
poster can change (a silent agent, a lease, a device that nobody measured, an account found lying)
count for nothing.

How: with one number relaxed to x, `_frontier` knows the least y of another that lets enough owners
in; x goes up through all values that matter, so every pair that could be least is looked at. Time:
a few passes over the offers, n log n each.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, prod
from operator import itemgetter
from typing import NamedTuple

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import NoMatch, Refused
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.jobs import AdviceView, ChangeView, Excluded, QuoteView, StageQuoteView
from market.domain.admission import (
    Surroundings,
    check_terms,
    could_be_posted,
    least_budget_at,
)
from market.domain.matching import (
    Ask,
    Bundle,
    Clearing,
    Judged,
    Need,
    asks_of,
    bundle_of,
    buy,
    deal,
    exclusions_of,
    judge,
)
from market.domain.offers import Candidate
from market.domain.sizes import Cut, Terms, cut_of, job_cost, job_flops, other_cuts, stage_seconds
from training.config import slices_of, train_config
from training.planner import stage_memories
from verification.distances.thresholds import Calibration

# -------------------------------------------------------------------------------- the least change

NUMBERS = ("price", "stake", "window", "start")
"""Constraints (`matching.CONSTRAINTS`) that a number of the job decides, in the order above."""
_CHANGEABLE = frozenset({*NUMBERS, "memory"})
_PRICE, _STAKE, _WINDOW, _START = range(len(NUMBERS))

Short = tuple[int, int, int, int]
"""By how much each number falls short: base units, base units, seconds, milliseconds."""


@dataclass(frozen=True)
class Relaxation:
    """The changes, what the job asks for with them, and how large they are together."""

    changes: tuple[ChangeView, ...]
    terms: Terms
    size: Fraction


class _Option(NamedTuple):
    """An offer that a change may let in."""

    account: Address
    memory_bytes: int
    short: Short


class _Point(NamedTuple):
    """A relaxation that lets enough owners in; `size` is a numerator over `_Scale.whole`."""

    size: int
    num_changes: int
    short: Short
    cut: Cut


def least_relaxation(
    need: Need,
    cut: Cut,
    others: Sequence[Cut],
    judged: Sequence[Judged],
    *,
    admits: Callable[[Terms], bool] = lambda terms: True,
) -> Relaxation | None:
    """The least change that lets enough owners in.

    None where none is needed, or where no change, and no two, would do.

    Args:
        need: What the job asks for.
        cut: How it is cut.
        others: How else it could be cut.
        judged: All offers (`matching.judge`).
        admits: Whether a job with these terms may be posted at all.
    """
    if len({each.offer.account for each in judged if not each.failed}) >= cut.slots:
        return None  # it is matched as it is
    options = [_option(need, each) for each in judged if _CHANGEABLE.issuperset(each.failed)]
    scale, best = _Scale.of(need, cut), None
    for point in _points(options, cut, others, scale):
        if best is not None and point[:2] >= best[:2]:
            continue
        if point.num_changes and admits(_relaxed(need, point)):
            best = point
    return None if best is None else _relaxation(need, cut, best, scale)


# ------------------------------------------------------------------------------------------- sizes


@dataclass(frozen=True)
class _Scale:
    """Sizes as whole numbers: a change of 1 in a number has the size `weights[number] / whole`."""

    whole: int
    weights: tuple[int, ...]
    cut: Cut

    @staticmethod
    def of(need: Need, cut: Cut) -> "_Scale":
        millis = max(1, need.deadline * 1000 - need.now)
        ranges = (max(1, need.price_ceiling), max(1, need.min_stake), millis, millis)
        whole = prod(ranges) * cut.stages * cut.peers_per_stage
        weights = [whole // each for each in ranges]
        weights[_WINDOW] *= 1000  # it falls short by seconds
        return _Scale(whole, tuple(weights), cut)

    def of_cut(self, other: Cut) -> int:
        """How large the change to another cut is."""
        stages = abs(other.stages - self.cut.stages) * (self.whole // self.cut.stages)
        peers = abs(other.peers_per_stage - self.cut.peers_per_stage)
        return stages + peers * (self.whole // self.cut.peers_per_stage)


def _num_cut_changes(one: Cut, other: Cut) -> int:
    return (one.stages != other.stages) + (one.peers_per_stage != other.peers_per_stage)


# ------------------------------------------------------------------------------------------ offers


def _option(need: Need, judged: Judged) -> _Option:
    offer = judged.offer
    short = (
        max(0, offer.price - need.price_ceiling),
        max(0, need.min_stake - offer.free_stake),
        max(0, need.deadline - offer.expires_at),
        max(0, offer.available_from * 1000 - need.now),
    )
    return _Option(offer.account, offer.memory_bytes, short)


def _by_what_is_short(options: Iterable[_Option]) -> Mapping[int, list[_Option]]:
    """Options by the set of numbers in which they fall short, as bits."""
    found: dict[int, list[_Option]] = defaultdict(list)
    for option in options:
        price, stake, window, start = option.short
        bits = (price > 0) | (stake > 0) << 1 | (window > 0) << 2 | (start > 0) << 3
        found[bits].append(option)
    return found


# -------------------------------------------------------------------------------------- the search


def _points(
    options: Sequence[_Option], cut: Cut, others: Sequence[Cut], scale: _Scale
) -> Iterator[_Point]:
    fitting = _by_what_is_short(each for each in options if each.memory_bytes >= cut.memory_bytes)
    for one, other in combinations(range(len(NUMBERS)), 2):
        yield from _pairs(fitting, one, other, cut, scale)
    roomy = _by_what_is_short(options)
    for number in range(len(NUMBERS)):
        yield from _cuts(roomy, number, others, scale)


def _pairs(
    fitting: Mapping[int, list[_Option]], one: int, other: int, cut: Cut, scale: _Scale
) -> Iterator[_Point]:
    """Two numbers relaxed, or one of them alone, with the cut as it is."""
    ready = {option.account for option in fitting.get(0, ())}
    wanted = cut.slots - len(ready)
    sets = (1 << one, 1 << other, 1 << one | 1 << other)
    pool = [
        (option.short[one], option.short[other], option.account)
        for bits in sets
        for option in fitting.get(bits, ())
        if option.account not in ready
    ]
    pool.sort(key=itemgetter(0))
    stops = [(value, wanted) for value in dict.fromkeys((0, *(each[0] for each in pool)))]
    for place, least in _frontier(pool, stops):
        value = stops[place][0]
        size = value * scale.weights[one] + least * scale.weights[other]
        yield _Point(size, (value > 0) + (least > 0), _short({one: value, other: least}), cut)


def _cuts(
    roomy: Mapping[int, list[_Option]], number: int, others: Sequence[Cut], scale: _Scale
) -> Iterator[_Point]:
    """Another cut, alone or with one number relaxed."""
    pool = [
        (-option.memory_bytes, option.short[number], option.account)
        for bits in (0, 1 << number)
        for option in roomy.get(bits, ())
    ]
    pool.sort(key=itemgetter(0))
    cuts = sorted(others, key=lambda each: -each.memory_bytes)
    stops = [(-each.memory_bytes, each.slots) for each in cuts]
    for place, least in _frontier(pool, stops):
        num_changes = _num_cut_changes(scale.cut, cuts[place]) + (least > 0)
        if num_changes <= 2:
            size = scale.of_cut(cuts[place]) + least * scale.weights[number]
            yield _Point(size, num_changes, _short({number: least}), cuts[place])


def _frontier(
    pool: Sequence[tuple[int, int, Address]], stops: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """At each stop, the least y that lets enough owners in.

    Args:
        pool: x, y and owner of what could be let in, by x; an owner may be there several times.
        stops: x up to which things are let in, rising, and how many owners are wanted then.

    Yields:
        The place of a stop, and y; nothing for a stop with too few owners.
    """
    least: dict[Address, int] = {}
    ordered: list[int] = []  # values of `least`
    done = 0
    for place, (limit, wanted) in enumerate(stops):
        while done < len(pool) and pool[done][0] <= limit:
            _, value, account = pool[done]
            done += 1
            known = least.get(account)
            if known is None or value < known:
                if known is not None:
                    del ordered[bisect_left(ordered, known)]
                insort(ordered, value)
                least[account] = value
        if 0 < wanted <= len(ordered):
            yield place, ordered[wanted - 1]


def _short(values: Mapping[int, int]) -> Short:
    return (
        values.get(_PRICE, 0),
        values.get(_STAKE, 0),
        values.get(_WINDOW, 0),
        values.get(_START, 0),
    )


# -------------------------------------------------------------------------------------- the answer


def _relaxed(need: Need, point: _Point) -> Terms:
    price, stake, window, start = point.short
    return Terms(
        PricePerPflop(need.price_ceiling + price),
        BaseUnits(need.min_stake - stake),
        UnixSeconds(need.deadline - window),
        UnixMillis(need.now + start),
        point.cut,
    )


def _relaxation(need: Need, cut: Cut, point: _Point, scale: _Scale) -> Relaxation:
    terms = _relaxed(need, point)
    numbers = (
        ChangeView(key="price_ceiling", was=need.price_ceiling, to=terms.price_ceiling),
        ChangeView(key="min_stake", was=need.min_stake, to=terms.min_stake),
        ChangeView(key="deadline", was=need.deadline, to=terms.deadline),
        ChangeView(key="wait_until", was=need.now // 1000, to=terms.start // 1000),
        ChangeView(key="stages", was=cut.stages, to=point.cut.stages),
        ChangeView(key="peers_per_stage", was=cut.peers_per_stage, to=point.cut.peers_per_stage),
    )
    changes = tuple(each for each in numbers if each.was != each.to)
    return Relaxation(changes, terms, Fraction(point.size, scale.whole))


# ------------------------------------------------------------------------ why a job is not matched


@dataclass(frozen=True)
class WhyNot:
    """Why a bundle is not complete, and what would complete it."""

    exclusions: tuple[Excluded, ...] = ()
    advice: AdviceView | None = None


def why_no_bundle(
    spec: JobSpec,
    need: Need,
    judged: Sequence[Judged],
    missing: Bundle,
) -> WhyNot:
    """Why a bundle is not complete: how many owners would do and fit, then `exclusions_of`.

    A bundle of which leases stand already is no other cut's, so only numbers are relaxed for it.
    """
    asks = asks_of(judged)
    owners = len({ask.seller for ask in asks})
    few = f"needs {missing.slots} owners, {owners} fit"
    short = Excluded(constraint="owners", offers=len(asks), would_fit=few)
    exclusions = ((short,) if 1 < missing.slots > owners else ()) + exclusions_of(need, judged)
    return WhyNot(exclusions, _advice(spec, need, judged, missing))


def _advice(
    spec: JobSpec, need: Need, judged: Sequence[Judged], missing: Bundle
) -> AdviceView | None:
    signed = cut_of(spec)

    def admits(terms: Terms) -> bool:
        return could_be_posted(spec, terms if others else replace(terms, cut=signed))

    if missing.slots == signed.slots:
        cut, others = signed, _other_cuts(spec)
    else:  # what is missing beside leases that stand, whatever their stages
        cut, others = replace(signed, stages=1, peers_per_stage=missing.slots), ()
    found = least_relaxation(need, cut, others, judged, admits=admits)
    if found is None:
        return None
    return AdviceView(
        changes=found.changes,
        size=ceil(found.size * 10**6),
        budget=least_budget_at(spec, found.terms.price_ceiling),
    )


def _other_cuts(spec: JobSpec) -> tuple[Cut, ...]:
    try:
        return other_cuts(spec)
    except Refused:  # no model can be made of its numbers, which is a reason of its own
        return ()


# --------------------------------------------------------------------------------------- the quote


def need_of(spec: JobSpec, now: UnixMillis, calibration: Calibration) -> Need:
    """What the job asks of an offer; of its device too, if it is checked (docs/protocol.md 5)."""
    devices, audit = None, spec.rules.audit
    if audit is not None:
        classes = filter(calibration.admits, calibration.classes)
        devices = frozenset(filter(audit.admits, classes))
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
        advice=unmatched.advice,
        verification_budget=BaseUnits(0 if (it := spec.rules.audit) is None else it.budget),
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
    slots, it is what all of them can bond; None if there are not even enough.
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
    if len(spec.item_flops) != len(slices):
        return ()
    speeds = None if cleared is None else _speeds(spec, cleared, offers)
    seconds = None if speeds is None else stage_seconds(spec, [sum(each) for each in speeds])
    found = []
    memories = stage_memories(spec, config)
    for number, (each, memory) in enumerate(zip(slices, memories, strict=True)):
        found.append(
            StageQuoteView(
                first_layer=each.first_layer,
                end_layer=each.end_layer,
                item_flops=spec.item_flops[number],
                memory_bytes=memory,
                offers_with_memory=sum(offer.memory_bytes >= memory for offer in offers),
                peers=None if speeds is None else len(speeds[number]),
                flops_per_second=None if speeds is None else sum(speeds[number]),
                seconds=None if seconds is None else seconds[number],
            )
        )
    return tuple(found)
