"""How many units of a step one peer, or one owner, may be given at most (docs/protocol.md 7). Pure.

By speed: a peer's share of a stage's units is at most 1.2 times its part of the stage's measured
rates, an owner's at most a quarter where the stage has five owners or more: so whoever answers junk
twenty times faster wins no more than that. While these sum below one, those of peers are lifted by
one common factor; the quarters stay, as five of them always suffice.

By money at risk: a peer of a checked job is given no more units than q <= 1 covers, which the fold
of its draws says (`Covered`). What that takes from some goes to who is covered for more, and the
caps by speed, quarters included, are lifted by one common factor for it. Only where all of a stage
are covered for less than a step are the caps by money lifted, by one common factor too, as far as
speed allows: the step must be done, and what lies above the cover is drawn for certain, as q is 1.
Who is covered for less than one unit is given one all the same: the peers of a stage are its
auditors, and one who idles audits nobody, earns nothing that waits, and never comes to be covered.

Exact: rationals, then whole units by largest remainder.

Invariants: the quotas of a stage sum to at least its units. By speed alone a quota is less than one
unit above its cap, and so is the sum of an owner's. If what covers all of a stage suffices, no
quota is above its peer's cover, but for one unit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import TypeAlias

from contracts.terms.ids import Address, PeerId, StageIndex
from training.swarm.duties import workers_of
from training.swarm.state import SwarmState

PEER_CAP = Fraction(6, 5)  # of its part of the stage's measured rates
OWNER_CAP = Fraction(1, 4)  # of the stage's units
MIN_OWNERS = 5  # with fewer in a stage, only the caps of peers hold
LEAST_COVER = 1  # units that who works may always be given

Units: TypeAlias = Mapping[PeerId, int]

Covered: TypeAlias = Callable[[StageIndex, Units], Units]
"""Units that q <= 1 covers of a stage's peers, given those that their speed allows; who is not in
the answer is covered for any number (`contracts.governance.checking.Checking.most_units`)."""


def unlimited(_stage: StageIndex, _by_speed: Units) -> Units:
    """`Covered` of a job that nobody checks."""
    return {}


@dataclass(frozen=True)
class Measured:
    """A peer that may be given units: whose it is, and how fast it was when it joined."""

    peer: PeerId
    owner: Address
    rate: int  # units per 1e6 seconds


def quotas_of(state: SwarmState, covered: Covered = unlimited) -> Units:
    """How many units of this step each worker may be given, those counted already included."""
    return {
        peer: quota
        for stage in state.terms.stages
        for peer, quota in _quotas_in(state, stage, covered).items()
    }


def _quotas_in(state: SwarmState, stage: StageIndex, covered: Covered) -> Units:
    workers = [Measured(m.peer, m.owner, m.rate) for m in workers_of(state, stage)]
    num_units = state.terms.units_per_step
    by_speed = quotas_in_stage(workers, num_units, turn=state.step)
    most = covered(stage, by_speed)
    if not most:
        return by_speed
    return quotas_in_stage(workers, num_units, turn=state.step, most=most)


def quotas_in_stage(
    workers: Sequence[Measured], num_units: int, *, turn: int = 0, most: Units | None = None
) -> Units:
    """Whole units for every worker of a stage.

    Args:
        workers: Everybody who may be given some.
        num_units: Of the step.
        turn: Moves rounding around from step to step.
        most: Units that money at risk covers, of all or some of them.
    """
    exact = {peer: cap * num_units for peer, cap in caps_in_stage(workers).items()}
    if most:
        exact = dict(_within_cover(exact, most, num_units))
    quotas = {peer: floor(units) for peer, units in exact.items()}
    wanted = max(num_units, floor(sum(exact.values()))) if workers else 0
    owner_of = {worker.peer: worker.owner for worker in workers}
    room: defaultdict[Address, Fraction] = defaultdict(Fraction)
    for peer, owner in owner_of.items():
        room[owner] += exact[peer]
    left = {
        owner: ceil(units) - sum(quotas[peer] for peer in owner_of if owner_of[peer] == owner)
        for owner, units in room.items()
    }
    for peer in _by_remainder(exact, turn):
        if sum(quotas.values()) >= wanted:
            break
        if left[owner_of[peer]]:
            left[owner_of[peer]] -= 1
            quotas[peer] += 1
    return quotas


def _by_remainder(exact: Mapping[PeerId, Fraction], turn: int) -> list[PeerId]:
    peers = sorted(exact)
    order = {peer: (place - turn) % len(peers) for place, peer in enumerate(peers)}
    return sorted(peers, key=lambda peer: (floor(exact[peer]) - exact[peer], order[peer]))


# ----------------------------------------------------------------------------------- by money


def _within_cover(
    by_speed: Mapping[PeerId, Fraction], most: Units, num_units: int
) -> Mapping[PeerId, Fraction]:
    """Caps in units that sum to `num_units` at least: within `most`, as far as that suffices."""
    cover = {peer: Fraction(max(LEAST_COVER, most.get(peer, num_units))) for peer in by_speed}
    if sum(cover.values()) >= num_units:
        return _lifted(by_speed, cover, num_units)
    return _lifted(cover, by_speed, num_units)


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


def caps_in_stage(workers: Iterable[Measured]) -> Mapping[PeerId, Fraction]:
    """The largest share of a stage's units that each worker may have; they sum to one or more."""
    workers = tuple(workers)
    total = sum(worker.rate for worker in workers)
    parts: defaultdict[Address, Fraction] = defaultdict(Fraction)
    for worker in workers:
        parts[worker.owner] += Fraction(worker.rate, total)
    limit = OWNER_CAP if len(parts) >= MIN_OWNERS else None
    factor = PEER_CAP if limit is None else _factor(sorted(parts.values(), reverse=True), limit)

    def cap(worker: Measured) -> Fraction:
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
