"""What the router hands out in a checked job is covered: q <= 1 without being capped.

A job is led through steps whose pay waits; then quotas are made as the coordinator makes them. The
rate that each quota needs is computed here from stakes, pay and weights alone.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance.checking import Terms
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, PeerId, StepNumber
from contracts.terms.messages import MILLION
from tests.support.dockets import STAGE, CheckedJob, audit_spec, peer
from tests.support.rounds import member
from training.coordinator.caps import Caps, quotas_in_group

WORTH = 1000  # base units, of a unit
MARGIN, DETECTION = Fraction(5, 4), Fraction(99, 100)
NAMES = ("ann", "bob", "cem", "dan", "eve")
WINDOW = 2


@dataclass
class PaidJob:
    """A job among owners with these stakes, and what each peer earned in which step."""

    stakes: tuple[int, ...]
    repeats: Fraction
    owners: Mapping[str, str] = field(default_factory=dict)
    earned: dict[tuple[PeerId, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        audit = audit_spec(
            floor=1,
            repeats=int(self.repeats * MILLION),
            margin=int(MARGIN * MILLION),
            detection=int(DETECTION * MILLION),
        )
        self.job = CheckedJob(
            NAMES[: len(self.stakes)], self.owners, ("out",), WORTH, audit=audit,
            rules={"vesting_window": WINDOW},
        )  # fmt: skip
        for name, stake in zip(self.job.workers, self.stakes, strict=True):
            lease = self.job.leases[peer(name)]
            self.job.leases[peer(name)] = replace(lease, stake=BaseUnits(stake))
        self.peers = {name: peer(name) for name in self.job.workers}

    def work(self, units: int) -> None:
        """A step in which the peers do `units` units and some more, each another number."""
        done = {name: units + place for place, name in enumerate(self.job.workers)}
        beacons = [self.job.beacon(self.job.step)] if self.job.step else []
        commits = [self.job.commit(name, each) for name, each in done.items() if each]
        self.job.seal(*commits, *beacons)
        for name, each in done.items():
            self.earned[self.peers[name], self.job.step] = each * WORTH

    def covered(self, by_speed: Caps) -> Caps:
        """What the docket says."""
        terms = Terms(self.job.spec, self.job.leases, self.job.members)
        step = StepNumber(self.job.step + 1)
        return self.job.docket.most_units(step, STAGE, by_speed, terms)

    def owner(self, who: PeerId) -> Address:
        """Whose it is."""
        return self.job.leases[who].account

    def needed(self, who: PeerId, units: int, weights: Caps) -> Fraction:
        """The rate that so many units need, if the others do what `weights` says."""
        if not units:
            return Fraction(0)
        others = Counter[Address]()
        for mate, weight in weights.items():
            if self.owner(mate) != self.owner(who):
                others[self.owner(mate)] += weight
        power = DETECTION
        if others.total():
            phi = Fraction(max(others.values()), others.total())
            power *= 1 - phi + phi * self.repeats
        step = self.job.step + 1
        waits = sum(self.earned.get((who, each), 0) for each in range(step - WINDOW, step))
        at_risk = self.job.leases[who].stake + waits + units * WORTH
        return MARGIN * units * WORTH / (at_risk * power)


@given(
    stakes=st.lists(st.integers(0, 8 * WORTH), min_size=2, max_size=5).map(tuple),
    rates=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    before=st.lists(st.integers(0, 3), max_size=3),
    num_units=st.integers(1, 16),
    repeats=st.sampled_from([Fraction(1, 5), Fraction(1)]),
    is_double=st.booleans(),
)
def test_quotas__any_stakes_and_pay_that_waits__are_covered(
    stakes: tuple[int, ...],
    rates: list[int],
    before: list[int],
    num_units: int,
    repeats: Fraction,
    is_double: bool,
) -> None:
    """Who gets more than one unit needs no rate above 1, if the stage's covers suffice."""
    paid = PaidJob(stakes, repeats, {"bob": "ann"} if is_double else {})
    for units in before:
        paid.work(units)
    workers = [
        member(who, of=paid.owner(who), rate=rate)
        for who, rate in zip(paid.peers.values(), rates, strict=False)
    ]
    by_speed = quotas_in_group(workers, num_units)
    most = paid.covered(by_speed)
    quotas = quotas_in_group(workers, num_units, most=most)

    assert most.keys() == by_speed.keys()
    if sum(max(1, each) for each in most.values()) >= num_units:
        above = {who: units for who, units in quotas.items() if units > 1}
        assert all(paid.needed(who, units, by_speed) <= 1 for who, units in above.items())
    for who, units in most.items():  # and no unit more or less than could be
        assert paid.needed(who, units, by_speed) <= 1 < paid.needed(who, units + 1, by_speed)
