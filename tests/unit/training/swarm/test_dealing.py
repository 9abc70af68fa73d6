"""Who sums which chunk."""

from collections import Counter

from contracts.terms.ids import Address, PeerId
from tests.unit.training.swarm.factories import A, B, C, peer
from training.swarm.dealing import Summing, summing_orders

D = peer("d")


def summing(who: PeerId) -> Summing:
    return Summing(who, Address(who[:1] * 20), 100)


def test_summing_orders__equal_bandwidths__in_turn() -> None:
    orders = summing_orders((summing(A), summing(B), summing(C)), 4)

    assert [order[0] for order in orders] == [A, B, C, A]


def test_summing_orders__one_peer_lost__its_chunks_are_spread() -> None:
    orders = summing_orders((summing(A), summing(B), summing(C), summing(D)), 12)

    assert Counter(order[1] for order in orders if order[0] == A) == {B: 1, C: 1, D: 1}
