"""Caps and quotas for every group that hypothesis can think of."""

from collections import defaultdict
from fractions import Fraction
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Address, PeerId
from tests.support.rounds import member
from training.coordinator import caps
from training.coordinator.caps import (
    MIN_OWNERS,
    OWNER_CAP,
    PEER_CAP,
    caps_in_group,
    quotas_in_group,
)
from training.strategies.port import Member

rates = st.integers(1, 10**9)
pairs = st.lists(st.tuples(rates, st.integers(0, 7)), min_size=1, max_size=14)
units = st.integers(1, 200)


def workers_of(pairs: list[tuple[int, int]]) -> list[Member]:
    """Peers with these rates, of owners with these numbers."""
    return [
        member(PeerId(bytes([number]) * 32), of=Address(bytes([owner]) * 20), rate=rate)
        for number, (rate, owner) in enumerate(pairs)
    ]


def by_owner(workers: list[Member], amounts: dict[PeerId, Fraction]) -> dict[Address, Fraction]:
    """Sums over each owner's peers."""
    sums: defaultdict[Address, Fraction] = defaultdict(Fraction)
    for worker in workers:
        sums[worker.owner] += amounts[worker.peer]
    return dict(sums)


@given(pairs)
def test_caps__any_stage__sum_to_one_and_lift_no_more_than_that(
    pairs: list[tuple[int, int]],
) -> None:
    workers = workers_of(pairs)
    caps = dict(caps_in_group(workers))
    total = sum(worker.rate for worker in workers)
    parts = {worker.peer: Fraction(worker.rate, total) for worker in workers}
    owners = by_owner(workers, caps)

    assert sum(caps.values()) >= 1
    if len(owners) >= MIN_OWNERS:
        assert max(owners.values()) <= OWNER_CAP
    if sum(caps.values()) > 1:
        assert all(caps[peer] <= PEER_CAP * part for peer, part in parts.items())


@given(pairs, units, st.integers(0, 9))
def test_quotas__any_stage__place_every_unit_within_a_unit_of_the_caps(
    pairs: list[tuple[int, int]], num_units: int, turn: int
) -> None:
    workers = workers_of(pairs)
    caps = dict(caps_in_group(workers))
    quotas = quotas_in_group(workers, num_units, turn=turn)
    whole = by_owner(workers, {peer: Fraction(quota) for peer, quota in quotas.items()})
    owners = by_owner(workers, caps)

    assert sum(quotas.values()) >= num_units
    assert min(whole.values()) >= 1  # nobody is shut out for what was measured once
    assert all(quota < caps[peer] * num_units + 1 for peer, quota in quotas.items())
    assert all(whole[owner] <= ceil(cap * num_units) for owner, cap in owners.items())


@given(pairs, units, st.integers(0, 9), st.lists(st.integers(0, 90), min_size=14, max_size=14))
def test_quotas__any_cover__are_within_it_as_far_as_the_step_can_be_done(
    pairs: list[tuple[int, int]], num_units: int, turn: int, covers: list[int]
) -> None:
    """Every unit is placed; nobody does more than money covers if that is enough for the stage.

    What speed alone allows stays so, where it is within the cover; and where the cover is short,
    nobody does more than speed allows.
    """
    workers = workers_of(pairs)
    most = {worker.peer: cover for worker, cover in zip(workers, covers, strict=False)}
    by_speed = {each: cap * num_units for each, cap in caps_in_group(workers).items()}
    quotas = caps.quotas_in_group(workers, num_units, turn=turn, most=most)
    room = {each: max(1, cover) for each, cover in most.items()}

    assert quotas.keys() == most.keys()
    assert sum(quotas.values()) >= num_units
    if sum(room.values()) >= num_units:
        assert all(quota <= room[each] for each, quota in quotas.items())
    else:
        assert sum(quotas.values()) < num_units + len({worker.owner for worker in workers})
        assert all(quota < by_speed[each] + 1 for each, quota in quotas.items())
        assert all(
            quota >= min(room[each], floor(by_speed[each])) for each, quota in quotas.items()
        )
    if all(by_speed[each] <= room[each] for each in room):
        assert quotas == quotas_in_group(workers, num_units, turn=turn)
