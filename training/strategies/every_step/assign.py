"""Which peer of a stage is given an item next: interleaved weighted round robin. Pure.

Each item goes to the peer that would be through with it first: least (dealt + counted + 1) / rate.
Who was not timed at work yet is given one before all others: what was measured when it joined may
be far too low, as its machine was busy, and who is given nothing is never measured again.
Items that another stage has done come first, as the round waits for them; when its time is over,
they alone are dealt.

Invariants: an item is with one peer of a stage at a time; nobody is given more than its cap, or
than it has room for. Source: SWARM 2301.11913, `ExpertBalancer`.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from contracts.terms.ids import PeerId
from training.strategies.port import Assignment, Group, Item, View

_MICRO = 10**12


def assign(view: View) -> tuple[Assignment, ...]:
    """See `PureStrategy.assign`."""
    if not view.is_dealing:
        return ()
    begun = view.begun()
    able = [peer for peer in view.router.room if peer in view.peers and view.can_work(peer)]
    return tuple(
        each
        for group in view.counted
        for each in _in_group(
            view,
            group,
            [peer for peer in able if view.peers[peer].group == group],
            _in_order(view, group, begun),
        )
    )


def _in_order(view: View, group: Group, begun: frozenset[Item]) -> list[Item]:
    free = view.open(group).difference(view.router.dealt.get(group, ()))
    first, others = sorted(free & begun), sorted(free - begun)
    return first if view.extended else first + others


def _in_group(
    view: View, group: Group, able: Iterable[PeerId], items: Iterable[Item]
) -> Iterable[Assignment]:
    loads = Counter(result.peer for result in view.counted[group].values())
    loads.update(view.router.dealt.get(group, {}).values())
    rates, caps, rooms = view.router.rates, view.router.caps, view.router.room
    left = {
        peer: min(rooms[peer], caps.get(peer, rooms[peer] + loads[peer]) - loads[peer])
        for peer in able
    }

    def through(peer: PeerId) -> tuple[int, PeerId]:
        if peer not in rates and not loads[peer]:
            return 0, peer
        return (loads[peer] + 1) * _MICRO // max(1, rates.get(peer, view.peers[peer].rate)), peer

    heap = [through(peer) for peer in left if left[peer] > 0]
    heapify(heap)
    given: dict[PeerId, list[Item]] = {}
    for item in items:
        if not heap:
            break
        _, peer = heappop(heap)
        given.setdefault(peer, []).append(item)
        loads[peer] += 1
        left[peer] -= 1
        if left[peer] > 0:
            heappush(heap, through(peer))
    for peer, own in given.items():
        yield Assignment(peer, group, tuple(own))
