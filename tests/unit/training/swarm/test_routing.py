"""Which peer computes a unit next."""

from collections import Counter

from contracts.terms.ids import PeerId, StepNumber
from contracts.terms.items import ItemNumber
from tests.unit.training.swarm.factories import A, B
from training.swarm.routing import BACKWARD, FORWARD, Balancer, Listed

STEP = StepNumber(1)


def announced(*workers: Listed, version: int = 1, before: Balancer | None = None) -> Balancer:
    """A balancer to which these workers were announced, all units still missing."""
    missing = [ItemNumber(unit) for unit in range(100)]
    balancer = before or Balancer()
    return balancer.announced(workers, step=STEP, version=version, missing=missing)


def given(balancer: Balancer, *units: int) -> tuple[Balancer, list[PeerId | None]]:
    """Whom each unit goes to, nobody having answered."""
    peers = []
    for unit in units:
        balancer, peer = balancer.choose(ItemNumber(unit))
        peers.append(peer)
    return balancer, peers


def listed(peer: PeerId, *, rate: int = 100, quota: int = 100, counted: int = 0) -> Listed:
    return Listed(peer, rate, quota, counted)


def test_choose__one_peer_twice_as_fast__gets_twice_as_many_units() -> None:
    _, peers = given(announced(listed(A, rate=200), listed(B, rate=100)), *range(9))

    assert Counter(peers) == {A: 6, B: 3}


def test_choose__quota_used_up__others_get_the_rest_and_then_nobody() -> None:
    balancer = announced(listed(A, rate=2000, quota=3, counted=1), listed(B, quota=2))

    _, peers = given(balancer, *range(6))

    assert Counter(peers) == {A: 2, B: 2, None: 2}


def test_choose__unit_moves_to_another_peer__no_longer_uses_the_first_ones_quota() -> None:
    balancer, (first,) = given(announced(listed(A, quota=1), listed(B, quota=1)), 0)
    assert first is not None

    balancer, second = balancer.choose(ItemNumber(0), avoid=[first])
    _, third = balancer.choose(ItemNumber(1))

    assert (second, third) == ((B, A) if first == A else (A, B))


def test_announced__peer_that_failed__is_banned_until_a_newer_version() -> None:
    balancer = announced(listed(A), listed(B)).failed(ItemNumber(0), A)

    balancer, banned = given(balancer, 0, 1)
    same = announced(listed(A), listed(B), before=balancer)
    newer = announced(listed(A), listed(B), before=balancer, version=2)

    assert banned == [B, B]
    assert given(same, 2)[1] == [B]
    assert given(newer, 2)[1] == [A]


def test_failed__by_deadline__frees_the_unit_without_a_ban() -> None:
    balancer, _ = given(announced(listed(A, quota=1)), 0)

    balancer = balancer.failed(ItemNumber(0), A, by_deadline=True)

    assert given(balancer, 1)[1] == [A]


def test_announced__unit_counted_meanwhile__is_not_counted_twice() -> None:
    balancer, _ = given(announced(listed(A, quota=2)), 0)

    later = balancer.announced(
        [listed(A, quota=2, counted=1)],
        step=STEP,
        version=2,
        missing=[ItemNumber(1), ItemNumber(2)],
    )

    assert given(later, 1, 2)[1] == [A, None]


def test_announced__peer_not_listed_any_more__is_forgotten() -> None:
    balancer = announced(listed(A), listed(B))

    later = announced(listed(B), before=balancer, version=2)

    assert given(later, 0, 1)[1] == [B, B]
    assert later.charged(A, BACKWARD) == later.answered(A, FORWARD, 1.0) == later


def test_charged__backward__weighs_two_and_a_half_forwards() -> None:
    balancer = announced(listed(A), listed(B))

    balancer = balancer.charged(A, BACKWARD)
    _, peers = given(balancer, *range(3))

    assert peers == [B, B, B]


def test_answered__slower_than_measured__gets_fewer_units() -> None:
    balancer = announced(listed(A, rate=10**6), listed(B, rate=10**6))
    for _ in range(3):
        balancer = balancer.answered(A, FORWARD, 10.0)

    _, peers = given(balancer, *range(5))

    assert Counter(peers)[B] >= 4
