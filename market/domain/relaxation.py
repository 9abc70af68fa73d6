"""What is the least that a poster could change so that the whole bundle is matched now? Pure.

A relaxation is one change of the job, or two: a higher price ceiling, a lower stake, an earlier
deadline, waiting for a window to open, other stages or fewer peers in each. How large a change is,
is said without a unit, so that unlike ones compare: the part of what was asked that it gives up.

    ceiling c -> c'   (c' - c) / c             stake s -> s'   (s - s') / s
    deadline d -> d'  (d - d') / (d - now)     wait until t    (t - now) / (d - now)
    stages n -> n'    |n' - n| / n             peers p -> p'   (p - p') / p

The size of two changes is the sum of both. The least is found exactly, over all offers there are;
of equal ones that with fewer changes, then the first in the order above. Offers that fail what no
poster can change (a silent agent, a lease, a device that nobody measured, an account found lying)
count for nothing.

How: with one number relaxed to x, `_frontier` knows the least y of another that lets enough owners
in; x goes up through all values that matter, so every pair that could be least is looked at.
Time: a few passes over the offers, n log n each.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod
from operator import itemgetter
from typing import NamedTuple

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.cuts import Cut, Terms
from market.domain.matching import Judged, Need

NUMBERS = ("price", "stake", "window", "start")
"""Constraints (`matching.CONSTRAINTS`) that a number of the job decides, in the order above."""
_CHANGEABLE = frozenset({*NUMBERS, "memory"})
_PRICE, _STAKE, _WINDOW, _START = range(len(NUMBERS))

Short = tuple[int, int, int, int]
"""By how much each number falls short: base units, base units, seconds, milliseconds."""


@dataclass(frozen=True)
class Change:
    """A field of the job file, or `wait_until` (Unix seconds), and what it becomes."""

    key: str
    was: int
    to: int


@dataclass(frozen=True)
class Relaxation:
    """The changes, what the job asks for with them, and how large they are together."""

    changes: tuple[Change, ...]
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
        Change("price_ceiling", need.price_ceiling, terms.price_ceiling),
        Change("min_stake", need.min_stake, terms.min_stake),
        Change("deadline", need.deadline, terms.deadline),
        Change("wait_until", need.now // 1000, terms.start // 1000),
        Change("stages", cut.stages, point.cut.stages),
        Change("peers_per_stage", cut.peers_per_stage, point.cut.peers_per_stage),
    )
    changes = tuple(each for each in numbers if each.was != each.to)
    return Relaxation(changes, terms, Fraction(point.size, scale.whole))
