"""How many leases does a job want, which does it buy now, and for which stages? Pure.

A bundle is `slots` leases (stages x peers of a stage), all or nothing until the job runs, and
`spares` more where they can be had. Once it runs, what is missing is bought one by one. Owners are
accounts, and an account sells one slot of a job, so a stage with two peers has two owners.
Units: FLOP/s as offered; prices in base units a PFLOP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import PricePerPflop
from contracts.terms.messages import JobSpec
from market.domain.auction import Ask, Clearing, clear, sell_at


@dataclass(frozen=True)
class Bundle:
    """How many leases a job must have, and how many more it may have."""

    slots: int
    spares: int

    def without(self, num_held: int) -> "Bundle":
        """What is missing beside `num_held` leases; which of them are spares nobody says."""
        short = max(0, self.slots - num_held)
        return Bundle(short, max(0, self.slots + self.spares - num_held - short))


@dataclass(frozen=True)
class Seat:
    """A lease that stands: the stage that it was meant for, and what it offers."""

    stage: int
    flops_per_second: int
    price: PricePerPflop


def bundle_of(spec: JobSpec) -> Bundle:
    """The leases that a job asks for."""
    return Bundle(spec.batch.stages * spec.batch.peers_per_stage, spec.batch.spares)


def buy(
    asks: Sequence[Ask],
    bundle: Bundle,
    held: Sequence[Seat],
    *,
    reserve: PricePerPflop,
    all_or_nothing: bool,
) -> Clearing:
    """Buy what is missing.

    Slots are cleared at the lowest losing ask. Spares that come after them are paid the least that
    a held lease is paid, and have to ask less, so their asks decide whether they come and not what
    they earn.

    Raises:
        NoMatch: `all_or_nothing`, and too few sellers for the slots; or nobody sells at all.
    """
    missing = bundle.without(len(held))
    if not missing.slots:
        price = min((seat.price for seat in held), default=reserve)
        return sell_at(asks, slots=missing.spares, price=price)
    slots, spares = missing.slots, missing.spares
    if not all_or_nothing:
        sellers = {ask.seller for ask in asks if ask.price <= reserve}
        slots, spares = min(slots, max(1, len(sellers))), 0
    return clear(asks, slots=slots, spares=spares, reserve=reserve)


def deal(speeds: Sequence[int], held: Sequence[Seat], *, num_stages: int) -> tuple[int, ...]:
    """The stage of each newcomer, by its FLOP/s: all stages as full, and as fast, as can be.

    The fastest first, each to the slowest of the stages with the fewest peers (longest processing
    time first, a round at a time). So numbers of peers differ by at most one and, without `held`,
    sums of FLOP/s by at most the largest one: a round gives more to a stage that has less, so no
    difference grows beyond what one round's fastest and slowest differ by.
    """
    peers = [sum(seat.stage == stage for seat in held) for stage in range(num_stages)]
    sums = [
        sum(seat.flops_per_second for seat in held if seat.stage == stage)
        for stage in range(num_stages)
    ]
    stages = [0] * len(speeds)
    for place in sorted(range(len(speeds)), key=lambda place: (-speeds[place], place)):
        neediest = min(range(num_stages), key=lambda stage: (peers[stage], sums[stage], stage))
        stages[place] = neediest
        peers[neediest] += 1
        sums[neediest] += speeds[place]
    return tuple(stages)
