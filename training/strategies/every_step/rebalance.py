"""Which peer moves to another group, so that no group holds up the others? Pure.

Adaptive rebalancing of SWARM (Ryabinin et al. 2023, arXiv 2301.11913, Algorithm 2): once a period,
one peer goes to the slowest group. The paper looks for it by the sizes of queues; here rates
stand for them.

A job is as fast as its slowest group. A move makes that one faster, and leaves the other one faster
than the slowest was. So no move lowers the minimum, and as long as rates stay as they are the
sorted rates of the groups rise with each move: moves end. Rates are in items of a group per 1e6
seconds, spans in milliseconds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

from contracts.terms.ids import Address, PeerId, StageIndex
from training.strategies.port import Member

LEAST_GAIN = Fraction(1, 2)
"""Of what a mover brings, the part by which the slower of the two groups must become faster.

Two equal peers more are a reason to move one, one more is none: the next measurement would send it
back. A part of the group's rate would be no measure: one of a hundred peers never lifts it by much.
"""

KEPT_OWNERS = 2
"""What a group keeps where it has them: with a single owner, nobody else can replay its work."""


@dataclass(frozen=True)
class Move:
    """A peer leaves one group and joins another."""

    peer: PeerId
    source: StageIndex
    target: StageIndex


def rebalance(
    members: Iterable[Member],
    item_flops: Sequence[int],
    *,
    since_move: int,
    period: int,
    pending: Set[PeerId] = frozenset(),
) -> Move | None:
    """The move that makes the slowest group fastest; None if there is none, or not yet.

    Args:
        members: Who leaves or is away does not count.
        item_flops: FLOPs of an item in each group, above 0: by these a rate changes with a move.
        since_move: Milliseconds since the last move, or since work began.
        period: The least time between two moves, T in the paper.
        pending: Who has a claim that no seal has paid: its evidence is with the peer.

    Returns:
        Of equally good moves, that from the fastest group, of the slowest peer, of the lowest id.
    """
    if since_move < period:
        return None
    placed = [each for each in members if each.is_here and not each.is_leaving]
    rates, owners = [0] * len(item_flops), [Counter[Address]() for _ in item_flops]
    for each in placed:
        rates[each.group] += each.rate
        owners[each.group][each.owner] += 1
    target = StageIndex(min(range(len(rates)), key=rates.__getitem__))

    def may_go(each: Member) -> bool:
        own = owners[each.group]
        stays = own[each.owner] > 1 or len(own) > KEPT_OWNERS
        return stays and each.group != target and each.peer not in pending

    def value(each: Member) -> tuple[Fraction, Fraction]:
        """By how much the slower of the two groups becomes faster, also as a part of what comes."""
        brings = Fraction(each.rate * item_flops[each.group], item_flops[target])
        gain = min(Fraction(rates[each.group] - each.rate - rates[target]), brings)
        return gain, gain / brings if brings else Fraction(0)

    moves = [(*value(each), each) for each in placed if may_go(each)]
    worthwhile = [(gain, each) for gain, part, each in moves if part >= LEAST_GAIN]
    if not worthwhile:
        return None
    _, best = min(worthwhile, key=lambda m: (-m[0], -rates[m[1].group], m[1].rate, m[1].peer))
    return Move(best.peer, best.group, target)
