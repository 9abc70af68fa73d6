"""How many items of a round one peer, or one owner, may be given (docs/protocol.md 7). Pure.

By the strategy, where it says how many items a peer may be given whatever its speed; else by
speed: a peer's share of a group's items is at most 1.2 times its part of the group's measured
rates, an owner's at most a quarter where the group has five owners or more: so whoever answers junk
twenty times faster wins no more than that. While these sum below one, those of peers are lifted by
one common factor; the quarters stay, as five of them always suffice.

By money at risk: a peer of a checked job is given no more items than q <= 1 covers, which the fold
of its draws says (`Covered`). What that takes from some goes to who is covered for more, and the
caps by speed, quarters included, are lifted by one common factor for it. Only where all of a group
are covered for less than a round are the caps by money lifted, by one common factor too, as far as
speed allows: the round must be done, and what lies above the cover is drawn for certain, as q is 1.

An owner whose caps come to less than one item may be given one all the same. The peers of a group
are its auditors, and one who idles audits nobody, earns nothing that waits, and never comes to be
covered; and who was measured while its machine was busy is measured again by its work alone.

Exact: rationals, then whole items by largest remainder.

Invariants: the quotas of a group sum to at least its items. By speed alone a quota is less than one
item above its cap, and so is the sum of an owner's. If what covers all of a group suffices, no
quota is above its peer's cover, but for one item.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import TypeAlias

from contracts.terms.ids import Address, PeerId
from training.rounds.state import RoundState
from training.strategies.port import Group, Member

PEER_CAP = Fraction(6, 5)  # of its part of the group's measured rates
OWNER_CAP = Fraction(1, 4)  # of the group's items
MIN_OWNERS = 5  # with fewer in a group, only the caps of peers hold
LEAST_COVER = 1  # items that who works may always be given

Caps: TypeAlias = Mapping[PeerId, int]

Covered: TypeAlias = Callable[[Group, Caps], Caps]
"""Items that q <= 1 covers of a group's peers, given those that their speed allows; who is not in
the answer is covered for any number (`contracts.governance.checking.Checking.most_items`)."""


def quotas_of(state: RoundState, workers: Iterable[Member], covered: Covered) -> Caps:
    """How many items of this round each worker may be given, those counted already included."""
    by_group: defaultdict[Group, list[Member]] = defaultdict(list)
    for member in sorted(workers, key=lambda each: each.peer):
        by_group[member.group].append(member)
    layout, quotas = state.terms.layout, dict[PeerId, int]()
    num_items = layout.items_per_round
    for group, own in by_group.items():
        if layout.most_items is not None:  # whatever their speed
            equal = {member.peer: layout.most_items for member in own}
            most = covered(group, equal)
            quotas |= {
                peer: min(items, max(LEAST_COVER, most.get(peer, items)))
                for peer, items in equal.items()
            }
            continue
        by_speed = quotas_in_group(own, num_items, turn=state.round)
        most = covered(group, by_speed)
        quotas |= quotas_in_group(own, num_items, turn=state.round, most=most) if most else by_speed
    return quotas


def quotas_in_group(
    workers: Sequence[Member], num_items: int, *, turn: int = 0, most: Caps | None = None
) -> Caps:
    """Whole items for every worker of a group.

    Args:
        workers: Everybody who may be given some.
        num_items: Of the step.
        turn: Moves rounding around from round to round.
        most: Caps that money at risk covers, of all or some of them.
    """
    exact = {peer: cap * num_items for peer, cap in caps_in_group(workers).items()}
    if most:
        exact = dict(_within_cover(exact, most, num_items))
    quotas = {peer: floor(items) for peer, items in exact.items()}
    wanted = max(num_items, floor(sum(exact.values()))) if workers else 0
    owner_of = {worker.peer: worker.owner for worker in workers}
    room: defaultdict[Address, Fraction] = defaultdict(Fraction)
    for peer, owner in owner_of.items():
        room[owner] += exact[peer]
    left = {owner: ceil(items) for owner, items in room.items()}
    for peer, items in quotas.items():
        left[owner_of[peer]] -= items
    lacking = wanted - sum(quotas.values())
    without = set(left) - {owner_of[peer] for peer, items in quotas.items() if items}
    for peer in _by_remainder(exact, turn):
        owner = owner_of[peer]
        if left[owner] and (lacking > 0 or owner in without):
            lacking -= 1
            left[owner] -= 1
            quotas[peer] += 1
            without.discard(owner)
    return quotas


def _by_remainder(exact: Mapping[PeerId, Fraction], turn: int) -> list[PeerId]:
    peers = sorted(exact)
    order = {peer: (place - turn) % len(peers) for place, peer in enumerate(peers)}
    return sorted(peers, key=lambda peer: (floor(exact[peer]) - exact[peer], order[peer]))


# ----------------------------------------------------------------------------------- by money


def _within_cover(
    by_speed: Mapping[PeerId, Fraction], most: Caps, num_items: int
) -> Mapping[PeerId, Fraction]:
    """Caps in items that sum to `num_items` at least: within `most`, as far as that suffices."""
    cover = {peer: Fraction(max(LEAST_COVER, most.get(peer, num_items))) for peer in by_speed}
    if sum(cover.values()) >= num_items:
        return _lifted(by_speed, cover, num_items)
    return _lifted(cover, by_speed, num_items)


def _lifted(
    caps: Mapping[PeerId, Fraction], limits: Mapping[PeerId, Fraction], wanted: int
) -> Mapping[PeerId, Fraction]:
    """`caps` times one factor, 1 or just so much more that they sum to `wanted` within `limits`.

    The limits sum to `wanted` at least.
    """
    order = sorted(caps, key=lambda peer: (limits[peer] / caps[peer], peer))
    for full in range(len(order)):  # so many are at their limit; the others share what is left
        left = wanted - sum((limits[peer] for peer in order[:full]), Fraction())
        factor = max(Fraction(1), left / sum((caps[peer] for peer in order[full:]), Fraction()))
        if factor * caps[order[full]] <= limits[order[full]]:
            return {peer: min(limits[peer], factor * cap) for peer, cap in caps.items()}
    return limits


# ----------------------------------------------------------------------------------- by speed


def caps_in_group(workers: Iterable[Member]) -> Mapping[PeerId, Fraction]:
    """The largest share of a group's items that each worker may have; they sum to one or more."""
    workers = tuple(workers)
    total = sum(worker.rate for worker in workers)
    parts: defaultdict[Address, Fraction] = defaultdict(Fraction)
    for worker in workers:
        parts[worker.owner] += Fraction(worker.rate, total)
    limit = OWNER_CAP if len(parts) >= MIN_OWNERS else None
    factor = PEER_CAP if limit is None else _factor(sorted(parts.values(), reverse=True), limit)

    def cap(worker: Member) -> Fraction:
        whole = factor * parts[worker.owner]
        whole = whole if limit is None else min(whole, limit)
        return whole * Fraction(worker.rate, total) / parts[worker.owner]

    return {worker.peer: cap(worker) for worker in workers}


def _factor(parts: Sequence[Fraction], limit: Fraction) -> Fraction:
    """What a part is multiplied by: 1.2, or just so much more that the owners' caps sum to one."""
    if sum(min(PEER_CAP * part, limit) for part in parts) >= 1:
        return PEER_CAP
    # The largest `full` owners are at the limit; the others share what is left.
    for full in range(len(parts)):
        factor = (1 - full * limit) / sum(parts[full:], Fraction())
        if factor * parts[full] <= limit:
            return factor
    raise AssertionError("MIN_OWNERS times OWNER_CAP is more than one")
