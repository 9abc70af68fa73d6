"""The rules of `local`: one group of whole replicas, which take steps for a signed time. Pure.

An item is a segment of inner steps. A peer is given its items one after another and in ascending
order, as each goes on from where the one before ended; none that it could not end in time, by its
rate, but for the first. A round closes when its time is over, or when everybody who may work has
done all that a peer may do, if they are a quorum: others may still be on their way to the newest
state. They are waited for only where peers work ahead: some would be through at once. So whoever is
fast gains nothing by it. Nothing is opened again in a round, and no claim is waited for beyond its
time: one that was not delivered is merged in the next round (staleness 1), what is missing is done
in a later one, as long as there is a quorum of owners (DiLoCo, arXiv 2311.08105; Decoupled DiLoCo,
2604.21428).
"""

from collections import Counter
from collections.abc import Iterator

from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.messages import JobSpec
from training.strategies.port import Assignment, Decision, Item, Layout, View

GROUP = StageIndex(0)
"""The one that everybody is in."""
AT_ONCE = 2  # items that a peer has: one is computed while the next one's rows are read
_MICRO_MS = 10**9  # rates are in items per 1e6 seconds


class Local:
    """See `PureStrategy`; of one job."""

    def __init__(self, spec: JobSpec) -> None:
        """By the numbers that a job signs."""
        if spec.batch.local is None:
            raise InvariantBroken("a job without local steps")
        self._most_items, self._quorum = spec.batch.local.segments, spec.batch.local.quorum
        self._items, self._works_ahead = spec.batch.units_per_step, spec.batch.works_ahead

    def layout(self, spec: JobSpec) -> Layout:
        """See `PureStrategy.layout`."""
        batch = spec.batch
        return Layout(
            outputs={GROUP: spec.chunking.of_stage(GROUP)},
            items_per_round=batch.units_per_step,
            ordered_items=batch.units_per_step * batch.steps,
            num_vectors=batch.num_vectors,
            norms_grow=batch.norms_grow,
            most_items=self._most_items,
            merges_late=batch.merges_late,
        )

    def assign(self, view: View) -> tuple[Assignment, ...]:
        """See `PureStrategy.assign`."""
        if not view.is_dealing or view.extended:
            return ()
        dealt = view.router.dealt.get(GROUP, {})
        items = sorted(view.open(GROUP).difference(dealt))
        loads, last = Counter[PeerId](), dict[PeerId, Item]()
        for own, peer in _had(view):
            loads[peer] += 1
            last[peer] = max(own, last.get(peer, own))
        waiting, found = Counter(dealt.values()), list[Assignment]()
        for peer in self._in_turn(view, loads, waiting):
            item = next((each for each in items if each > last.get(peer, -1)), None)
            if item is not None and (not loads[peer] or _fits(view, peer, waiting[peer])):
                items.remove(item)
                found.append(Assignment(peer, GROUP, (item,)))
        return tuple(found)

    def _in_turn(
        self, view: View, loads: Counter[PeerId], waiting: Counter[PeerId]
    ) -> list[PeerId]:
        """Who may be given one more item, one of each owner after another, as few as they have.

        By owner, because peers can choose their ids: where there are more peers than items those of
        one owner would get all of them in every round.
        """
        most, room = self._most_items, view.router.room
        able = (
            peer
            for peer, free in room.items()
            if free
            and peer in view.peers
            and view.can_work(peer)
            and loads[peer] < min(most, view.router.caps.get(peer, most))
            and waiting[peer] < AT_ONCE
        )
        owners = {peer: member.owner for peer, member in view.peers.items()}
        had = Counter(owners[peer] for peer in loads.elements() if peer in owners)
        turns: list[tuple[int, PeerId]] = []
        peers = sorted(able)
        first = view.newest % max(1, len(peers))  # the last item of a job is not always the same's
        for peer in sorted(peers[first:] + peers[:first], key=lambda each: loads[each]):
            turns.append((had[owners[peer]], peer))
            had[owners[peer]] += 1
        return [peer for _, peer in sorted(turns, key=lambda turn: turn[0])]

    def closes(self, view: View) -> Decision:
        """See `Closing.closes`."""
        is_over = view.ends is not None and view.now >= view.ends
        done, claims = view.counted[GROUP], view.claims.keys() - view.late
        if view.phase == "commit":
            is_through = claims <= view.delivered
            is_rest = view.num_issued < self._items  # of the job: it may be one owner's
            is_whole = is_rest and is_through and not view.missing
            if claims and is_whole and len(done) == view.num_issued:
                return "close"
            makers = {view.claims[name].peer for name in claims & view.delivered}
            owners = {view.peers[peer].owner for peer in makers & view.peers.keys()}
            if len(owners) < self._quorum:
                return "wait"
            return "close" if is_over or is_through else "wait"
        late = {item for name in view.late for item in view.claims[name].numbers}
        makers = {result.peer for item, result in done.items() if item not in late}
        if not makers:
            return "void" if is_over and view.extended else "wait"
        is_back = view.extended and claims  # some were lost while claims came in
        if is_over or is_back or len(done) == len(view.issued):
            return "close"
        loads = Counter(result.peer for result in done.values())
        workers = [peer for peer in view.peers if self._is_worker(view, peer)]
        is_through = all(loads[peer] >= self._most_items for peer in workers)
        owners = {view.peers[peer].owner for peer in makers & view.peers.keys()}
        return "close" if workers and is_through and len(owners) >= self._quorum else "wait"

    def _is_worker(self, view: View, peer: PeerId) -> bool:
        if view.can_work(peer) or view.may_be_back(peer):
            return True
        is_next = view.peers[peer].is_here and view.peers[peer].applied == view.newest - 1
        return self._works_ahead and is_next and view.has_a_place(peer)


def _had(view: View) -> Iterator[tuple[Item, PeerId]]:
    """All items of the round that somebody has, or has done."""
    for item, result in view.counted[GROUP].items():
        yield item, result.peer
    yield from view.router.dealt.get(GROUP, {}).items()


def _fits(view: View, peer: PeerId, num_waiting: int) -> bool:
    """Whether a peer could end one more item in the time of work, after those that it has."""
    if view.ends is None:
        return True
    rate = max(1, view.router.rates.get(peer, view.peers[peer].rate))
    return view.now + (num_waiting + 1) * _MICRO_MS // rate <= view.ends
