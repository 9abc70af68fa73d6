"""Which peer of a stage sums which chunk, and who stands in for it. Pure.

Chunks are dealt in proportion to bandwidth: whole chunks by D'Hondt's highest averages, which is
what Hagenbach-Bischoff comes to (hivemind's load balancing, DeDLOC 2106.10207). The order behind
a summing peer goes round the others, another owner next wherever there is one, and begins with
another of them for each of its chunks: so what a lost peer summed is spread over the stage.

Invariants: equal arguments give equal answers, whoever asks; every chunk has every peer once in its
order; who is removed from it moves nobody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from contracts.terms.ids import Address, PeerId


@dataclass(frozen=True)
class Summing:
    """A peer that may sum: whose it is, and how much goes through it."""

    peer: PeerId
    owner: Address
    bandwidth: int  # bytes per second


@lru_cache(maxsize=256)
def summing_orders(peers: tuple[Summing, ...], num_chunks: int) -> tuple[tuple[PeerId, ...], ...]:
    """For each chunk all of `peers`, the summing one first, its deputy next, and so on."""
    dealt = [0] * len(peers)
    orders = []
    for _ in range(num_chunks):
        first = max(
            range(len(peers)),
            key=lambda place: (Fraction(peers[place].bandwidth, dealt[place] + 1), -place),
        )
        others = [*peers[first + 1 :], *peers[:first]]
        turn = dealt[first] % max(1, len(others))
        orders.append(_alternating(peers[first], [*others[turn:], *others[:turn]]))
        dealt[first] += 1
    return tuple(orders)


def _alternating(first: Summing, others: Sequence[Summing]) -> tuple[PeerId, ...]:
    """The others behind `first`, each of another owner than the one before where possible."""
    order, left = [first], list(others)
    while left:
        owner = order[-1].owner
        chosen = next((each for each in left if each.owner != owner), left[0])
        left.remove(chosen)
        order.append(chosen)
    return tuple(each.peer for each in order)
