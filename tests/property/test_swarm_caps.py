"""Caps, quotas, routing and dealing for every stage that hypothesis can think of."""

from collections import Counter, defaultdict
from fractions import Fraction
from math import ceil, floor

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Address, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from training.swarm import caps
from training.swarm.caps import (
    MIN_OWNERS,
    OWNER_CAP,
    PEER_CAP,
    Measured,
    caps_in_stage,
    quotas_in_stage,
)
from training.swarm.dealing import Summing, summing_orders
from training.swarm.routing import FORWARD, Balancer, Listed

rates = st.integers(1, 10**9)
pairs = st.lists(st.tuples(rates, st.integers(0, 7)), min_size=1, max_size=14)
units = st.integers(1, 200)


def workers_of(pairs: list[tuple[int, int]]) -> list[Measured]:
    """Peers with these rates, of owners with these numbers."""
    return [
        Measured(PeerId(bytes([number]) * 32), Address(bytes([owner]) * 20), rate)
        for number, (rate, owner) in enumerate(pairs)
    ]


def by_owner(workers: list[Measured], amounts: dict[PeerId, Fraction]) -> dict[Address, Fraction]:
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
    caps = dict(caps_in_stage(workers))
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
    caps = dict(caps_in_stage(workers))
    quotas = quotas_in_stage(workers, num_units, turn=turn)
    whole = by_owner(workers, {peer: Fraction(quota) for peer, quota in quotas.items()})
    owners = by_owner(workers, caps)

    assert sum(quotas.values()) >= num_units
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
    by_speed = {each: cap * num_units for each, cap in caps_in_stage(workers).items()}
    quotas = caps.quotas_in_stage(workers, num_units, turn=turn, most=most)
    room = {each: max(1, cover) for each, cover in most.items()}

    assert quotas.keys() == most.keys()
    assert sum(quotas.values()) >= num_units
    if sum(room.values()) >= num_units:
        assert all(quota <= room[each] for each, quota in quotas.items())
    else:
        assert sum(quotas.values()) == num_units
        assert all(quota < by_speed[each] + 1 for each, quota in quotas.items())
        assert all(
            quota >= min(room[each], floor(by_speed[each])) for each, quota in quotas.items()
        )
    if all(by_speed[each] <= room[each] for each in room):
        assert quotas == quotas_in_stage(workers, num_units, turn=turn)


@given(pairs, units, st.lists(st.booleans(), min_size=20, max_size=20), st.integers(0, 5))
def test_balancer__any_answers__every_unit_goes_out_and_nobody_exceeds_its_quota(
    pairs: list[tuple[int, int]], num_units: int, in_time: list[bool], seed: int
) -> None:
    """Peers that answer twenty times faster than they were measured get no more for it."""
    workers = workers_of(pairs)
    quotas = quotas_in_stage(workers, num_units)
    listed = [Listed(worker.peer, worker.rate, quotas[worker.peer]) for worker in workers]
    missing = [ItemNumber(unit) for unit in range(num_units)]
    balancer = Balancer(seed).announced(listed, step=StepNumber(1), version=1, missing=missing)
    done: Counter[PeerId] = Counter()

    for unit in missing:
        balancer, peer = balancer.choose(unit)
        assert peer is not None
        if not in_time[unit % 20]:  # too late once: it goes out again
            balancer, peer = balancer.failed(unit, peer, by_deadline=True).choose(unit)
            assert peer is not None
        done[peer] += 1
        junk = peer == workers[0].peer
        seconds = 10**6 / workers[0].rate / 20 if junk else 1.0
        balancer = balancer.answered(peer, FORWARD, seconds)

    assert sum(done.values()) == num_units
    assert all(done[peer] <= quota for peer, quota in quotas.items())


@given(pairs, units, st.data())
def test_balancer__a_new_peer__is_next_but_for_ties(
    pairs: list[tuple[int, int]], num_units: int, data: st.DataObject
) -> None:
    """It starts level with the least busy one, so no other gets two units before it gets one."""
    workers = workers_of(pairs)
    listed = [Listed(worker.peer, worker.rate, 10**6) for worker in workers]
    missing = [ItemNumber(unit) for unit in range(3 * num_units + 2 * len(workers) + 2)]
    begun = Balancer().announced(listed, step=StepNumber(1), version=1, missing=missing)
    for unit in missing[:num_units]:
        begun, _ = begun.choose(unit)
    fresh = Listed(PeerId(b"n" * 32), data.draw(rates), 10**6)
    begun = begun.announced([*listed, fresh], step=StepNumber(1), version=2, missing=missing)

    before: Counter[PeerId | None] = Counter()
    for unit in missing[num_units:]:
        begun, peer = begun.choose(unit)
        if peer == fresh.peer:
            break
        before[peer] += 1

    assert peer == fresh.peer
    assert all(count <= 1 for count in before.values())


@given(st.lists(st.tuples(rates, st.integers(0, 3)), min_size=1, max_size=8), st.integers(1, 40))
def test_summing_orders__any_bandwidths__whole_chunks_nearest_to_the_proportion(
    pairs: list[tuple[int, int]], num_chunks: int
) -> None:
    peers = tuple(Summing(worker.peer, worker.owner, worker.rate) for worker in workers_of(pairs))
    orders = summing_orders(peers, num_chunks)
    dealt = Counter(order[0] for order in orders)
    total = sum(peer.bandwidth for peer in peers)

    assert all(sorted(order) == [peer.peer for peer in peers] for order in orders)
    for peer in peers:  # D'Hondt never gives less than the whole part of the quota
        assert dealt[peer.peer] >= num_chunks * peer.bandwidth // total
    owner = {peer.peer: peer.owner for peer in peers}
    if len(set(owner.values())) > 1:
        assert all(owner[order[0]] != owner[order[1]] for order in orders)
