"""Which peer makes which pass of an item, until when, and what it means when it does not. Pure.

The router decides and never waits: it is told how the round stands, what peers hand in, and what
time it is, and says what each peer is to hold. The strategy deals items (`PureStrategy.assign`):
an item is with one peer of a group at a time, from the first pass there until it counts. All this
is in memory alone. A peer that begins a session hands in all that it has of the round; a router
that has just started deals nothing before everybody who is to come back has done so, or had its
time for it, and goes on from there.

What a failed pass means. A tensor cannot be had: a peer of another owner is asked, or, if none has
room, the same one once more. When two owners say so, or one says it twice and no other can make the
pass, the tensor is made again, which is nobody's fault here; an owner at its cap is waited for. No
result in time, while another peer of the group could do it: the task is dropped; who has not begun
says so by not holding it any more, and who says nothing for `SILENT` more is `off`, so that its
items open again; not where a peer has items of its own in a round (`Layout.most_items`), which last
as long as the round. A conflict: the peer, which was away for too long, is bound to the item by a
claim that does not count; it is `off` at once. Anything else: the peer rests, longer each time.
Where nobody of a group may be asked for long, the caps of those that are left are lifted
(docs/protocol.md 7).

Work ahead. Who has claimed all that it did in a round may be granted items of the next one, one at
a time: they are its first ones there, all of them, or none if one is not issued or they are above
its cap. Nobody else is given them while it applies the seal, if there is anything else to do.

Invariants: a pass is with one peer at a time; a result counts only for a pass that its peer was
asked for, or, after a restart, within its cap. Units: seconds of one clock.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.targets import rounded_mean
from training.coordinator.throughput import Throughput
from training.coordinator.walks import (
    WEIGHT_OF_ITEM,
    Out,
    Peer,
    Round,
    Walk,
    done_of,
    name_of,
    rate_of,
)
from training.rounds.state import NO_ROUND
from training.strategies.every_step.passes import (
    Call,
    Way,
    check_answer,
    holders_of,
    lost,
    next_call,
    with_answer,
)
from training.strategies.port import (
    Group,
    Item,
    Items,
    Member,
    PureStrategy,
    Result,
    RoundNumber,
    View,
)
from training.strategies.port import (
    Router as Known,
)
from training.telling import Tell
from training.transport.calls import Failure, Input, ItemTasks, NextItem, Task, TaskName, TaskResult

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
SHORTEST, TIMES_USUAL = 5.0, 2.0  # seconds, and times what a pass usually takes: its deadline
EVALUATION_TIME = 30.0  # it waits behind all that is paid, and nothing waits for it
SILENT = 2.0  # seconds that a peer has to say something of a task that was dropped
LIFT_AFTER = 5.0  # seconds in which nobody could be asked within the caps
IN_FLIGHT = 2  # items of a group that a peer has at once, for each group that there is
LOST_AFTER = 4  # tries to get a tensor that only a result that counts can have
SAID_BY = 2  # owners who say that a tensor cannot be had, or times that the only one says it
GROUPS_AT_A_TIME = 4  # of validation rows
MOST_FAILURES = 5  # of one group of rows: how well a model does is not worth stopping a job for
WEIGHTS: Mapping[str, int] = {"forward": 1, "backward": 2, "whole": 3, "evaluate": 1}


class Router:
    """Of one job."""

    def __init__(
        self,
        rules: PureStrategy,
        num_groups: int,
        *,
        tell: Tell,
        awaited: Iterable[PeerId] = (),
        patience: float = 0.0,
        waits: bool = False,
    ) -> None:
        """Begin; `look` comes next.

        Args:
            rules: Of the job's strategy.
            num_groups: Of the job.
            tell: The log.
            awaited: Who may have work of the round from before this start.
            patience: Nothing is dealt before they have said what, or so long after one is here.
            waits: Whether an item stays with its peer, however long that takes in its round.
        """
        self._rules, self._num_groups, self._waits = rules, num_groups, waits
        self._last = StageIndex(num_groups - 1)
        self._tell = tell
        self.news: set[PeerId] = set()
        """Peers whose tasks have changed, until they are taken from here."""
        self.done: defaultdict[PeerId, list[Result]] = defaultdict(list)
        """What is to count, until it is `reported`."""
        self.lacked: dict[PeerId, Items] = {}  # likewise: what counts, and its peer has lost
        self.gone: set[Item] = set()  # likewise: only a lost tensor could complete them
        self.off: dict[PeerId, Items] = {}  # likewise: no more items for it; lost are these, or all
        self.validated: tuple[RoundNumber, int] | None = None
        """The round whose state was validated last, and its loss in 1e-6 nats per token."""
        self._round = Round(NO_ROUND)
        self._awaited, self._patience, self._is_gathering = {*awaited}, patience, True
        self._until = inf  # when it is over: nobody is here yet
        self._found: defaultdict[TaskName, dict[PeerId, TaskResult]] = defaultdict(dict)
        """What was made before this start."""
        self._held: dict[TaskName, PeerId] = {}  # asked for before it
        self._believed: defaultdict[PeerId, set[Item]] = defaultdict(set)  # of both
        self._peers: dict[PeerId, Peer] = {}
        self._out: defaultdict[PeerId, dict[TaskName, Out]] = defaultdict(dict)
        self._asked: set[tuple[PeerId, TaskName]] = set()  # of this round, or of this validation
        self._walks: dict[tuple[Item, bool], Walk] = {}
        self._waiting: dict[Group, dict[Item, Walk]] = {}  # for somebody
        self._to_begin: list[Item] = []  # descending
        self._dealt: dict[Group, dict[Item, PeerId]] = {}
        self._load: Counter[PeerId] = Counter()  # items dealt to each
        self._stuck_since: dict[Group, float] = {}  # while nobody of a group has anything
        self._again: dict[Group, float] = {}  # when to deal again
        self._granted: dict[PeerId, list[Item]] = {}  # of this round, until they are dealt
        self._next: defaultdict[PeerId, list[Item]] = defaultdict(list)  # granted of the next one
        self._last_granted = -1
        self._ahead: set[Item] = set()  # of this round, dealt as they were granted
        self._num_counted = -1
        self._num_evaluating = 0
        self._rows: list[Item] = []
        self._losses: dict[Item, int] = {}
        self._moments: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = count()

    # ---------------------------------------------------------------------------- how things are

    @property
    def round(self) -> RoundNumber:
        """The one that it has looked at last."""
        return self._round.number

    def look(self, round: Round, now: float) -> None:
        """Go by this from now on."""
        before, self._round = self._round, round
        if round.here:
            self._until = min(self._until, now + self._patience)
        if round.number != before.number:
            self._begin_round(is_first=not before.number)
        if round.validate_after != before.validate_after:
            self._abandon(evaluations=True)
            number = len(round.row_weights) if round.validate_after else 0
            self._rows, self._losses = [ItemNumber(rows) for rows in range(number)], {}
        if round.here is not before.here:
            self._awaited -= before.here.keys() - round.here.keys()
            for peer in self._out.keys() - round.here.keys():
                for out in [*self._out[peer].values()]:
                    self._fail(out, "peer_unreachable", "it is not here", ZERO_DIGEST, now)
        view = round.view
        if view is not None:
            counted = sum(len(own) for own in view.counted.values())
            if counted != self._num_counted:  # else it is just what was reported
                self._num_counted = counted
                self._compare(view, now)
        self._fill(now)

    def _begin_round(self, *, is_first: bool) -> None:
        self._abandon(evaluations=False)
        if not is_first:
            for of_before in (self._found, self._held, self._believed):
                of_before.clear()
        for of_the_round in (self.done, self.lacked, self.gone, self.off, self._ahead):
            of_the_round.clear()
        self._num_counted = self._last_granted = -1
        self._granted, self._next = dict(self._next), defaultdict(list)
        for peer in self._peers.values():
            peer.failures, peer.blamed = 0, []

    def _abandon(self, *, evaluations: bool) -> None:
        """What is on its way is of a round that is over, or of a state that is gone."""
        for walk in [walk for name, walk in self._walks.items() if name[1] == evaluations]:
            self._remove(walk)
        self._asked = {
            each for each in self._asked if (each[1].direction == "evaluate") != evaluations
        }
        if not evaluations:
            for of_items in (self._waiting, self._dealt, self._stuck_since, self._again):
                of_items.clear()
            self._load.clear()

    def _remove(self, walk: Walk) -> None:
        del self._walks[walk.name]
        self._num_evaluating -= walk.way.evaluates
        self._take_back(walk)
        if not walk.way.evaluates:
            for group in range(self._num_groups):
                self._free(StageIndex(group), walk.way.item)

    def _take_back(self, walk: Walk) -> None:
        if walk.out is not None:
            del self._out[walk.out.peer][name_of(walk.out.task)]
            self.news.add(walk.out.peer)
            walk.out = None

    def _free(self, group: Group, item: Item) -> None:
        """Nobody of a group has an item any more."""
        self._waiting.get(group, {}).pop(item, None)
        if (peer := self._dealt.get(group, {}).pop(item, None)) is not None:
            self._load[peer] -= 1

    def _compare(self, view: View, now: float) -> None:
        """Results count, or do not any more: go on from what does."""
        changed: list[Walk] = []
        for walk in [each for each in self._walks.values() if not each.way.evaluates]:
            done = done_of(view, walk.way.item)
            if done != walk.way.done:
                self._take_back(walk)
                stale = {*done} | ({walk.call.group} if walk.call else set())
                for group in stale:
                    self._free(group, walk.way.item)
                forwards = {g: each for g, each in walk.way.forwards.items() if g not in done}
                walk.way, walk.call = replace(walk.way, done=done, forwards=forwards), None
                changed.append(walk)
        open = view.issued - view.complete()
        for walk in [w for n, w in self._walks.items() if not n[1] and n[0] not in open]:
            self._remove(walk)
        begun = {item for item, evaluates in self._walks if not evaluates}
        self._to_begin = sorted(open - begun, reverse=True)
        for walk in changed:
            if self._walks.get(walk.name) is walk:
                self._go(walk, now)

    def reported(self) -> None:
        """What was done is in the round that is looked at next; or it did not fit."""
        self._num_counted += sum(len(results) for results in self.done.values())
        if self.lacked or self.gone or self.off:
            self._num_counted = -1
        for told in (self.done, self.lacked, self.gone, self.off):
            told.clear()

    # -------------------------------------------------------------------------------------- time

    def pass_time(self, now: float) -> None:
        """Do what is due, and deal."""
        while self._moments and self._moments[0][0] <= now:
            heappop(self._moments)[2](now)
        self._fill(now)

    def next_moment(self) -> float | None:
        """When `pass_time` has something to do."""
        moments = [at for at, _, _ in self._moments[:1]] + [*self._again.values()]
        moments += [self._until] * (self._is_gathering and self._until < inf)
        return min(moments, default=None)

    def _at(self, moment: float, act: Callable[[float], None]) -> None:
        heappush(self._moments, (moment, next(self._number), act))

    # -------------------------------------------------------------------------------- what is out

    def owed(self, peer: PeerId, holding: Iterable[TaskName]) -> ItemTasks:
        """Tasks that a peer that holds these does not know of, and those that nobody wants."""
        own, names = self._out[peer], {*holding}
        tasks = tuple(o.task for name, o in own.items() if name not in names and not o.is_dropped)
        if self._is_gathering:
            return ItemTasks(tasks=tasks, drops=())
        drops = [name for name in names if name not in own or own[name].is_dropped]
        for name in drops:
            if name in own:
                own[name].is_told = True
        return ItemTasks(tasks=tasks, drops=tuple(drops))

    def _fill(self, now: float) -> None:
        """Begin groups of rows, or else items, the lowest first, as long as there is room; deal."""
        if self._is_gathering:
            if self._awaited and now < self._until:
                return
            self._is_gathering = False
            self.news |= self._round.here.keys()  # what they hold may be wanted no more
        while self._rows and self._num_evaluating < GROUPS_AT_A_TIME:
            self._begin(Way(self._rows.pop(0), self._num_groups, evaluates=True), now)
        view = self._round.view
        if view is None or not view.is_dealing or self._num_evaluating:
            return  # the state of the round before is gone as soon as all items are done
        granted = self._reserved()
        ahead = len(granted) + sum((item, False) in self._walks for item in self._ahead)
        room = ahead + IN_FLIGHT * self._num_groups * max(1, len(self._round.here))
        # What somebody had at our start is begun first: to work on others it would have to go back.
        had = granted.union(each.item for names in (self._found, self._held) for each in names)
        first = [item for item in self._to_begin if item in had]
        if first:
            self._to_begin = [item for item in self._to_begin if item not in had]
        while first or (self._to_begin and len(self._walks) < room):
            item = (first or self._to_begin).pop()
            self._begin(Way(item, self._num_groups, done=done_of(view, item)), now)
        if self.done:
            return  # found just now: strategies deal by what counts, so it is recorded first
        for group in [each for each, walks in self._waiting.items() if walks]:
            self._deal(view, group, now)

    def _begin(self, way: Way, now: float) -> None:
        walk = self._walks[way.item, way.evaluates] = Walk(way)
        self._num_evaluating += way.evaluates
        self._go(walk, now)

    def _go(self, walk: Walk, now: float) -> None:
        """Ask for what comes next on its way, or end it."""
        while (call := next_call(walk.way)) is not None:
            if (passed := self._take_found(walk.way, call)) is None:
                break
            self._note(walk, call, passed)
        walk.call, walk.lacking, walk.failed = call, [], []
        if call is None:
            self._remove(walk)
            if walk.way.evaluates:
                self._note_loss(walk.way.forwards[self._last])
            return
        self._give(walk, call, now)

    def _give(self, walk: Walk, call: Call, now: float) -> None:
        """Have somebody make the pass that a walk waits for, as soon as somebody may be asked."""
        item, group = walk.way.item, call.group
        if walk.way.evaluates:
            able = [peer for peer, own in self._round.here.items() if own == group]
            able = [peer for peer in able if not self._is_resting(peer, now)]
            if able:
                self._ask(walk, call, min(able, key=lambda p: (len(self._out[p]), p)), now)
            else:
                self._pause(walk, now + FIRST_PAUSE)
            return
        peer = self._dealt.get(group, {}).get(item)
        if peer is not None and self._round.here.get(peer) == group:
            self._ask(walk, call, peer, now)
            return
        self._free(group, item)
        self._waiting.setdefault(group, {})[item] = walk
        name = TaskName(direction=call.direction, round=self._round.number, item=item)
        peer = self._held.pop(name, None)
        fits = peer is not None and self._fits(peer, name, walk.way, call)
        if peer is not None and fits and self._may_have_had(peer, group, item):
            self._assign(peer, group, self._waiting[group].pop(item), now)

    def _may_have_had(self, peer: PeerId, group: Group, item: Item) -> bool:
        """Whether a peer may have had an item at our start: of so many, and within its cap."""
        believed, view = self._believed[peer], self._round.view
        if view is None or item in believed:
            return view is not None
        of_it = [number for number, each in view.counted[group].items() if each.peer == peer]
        cap = self._round.caps.get(peer, 0)
        if len(believed) == IN_FLIGHT * self._num_groups or len(believed.union(of_it)) >= cap:
            return False
        believed.add(item)
        return True

    def _deal(self, view: View, group: Group, now: float) -> None:
        """Give items that wait in a group to who may have them."""
        lifted = 1 + int((now - self._stuck_since.get(group, now)) / LIFT_AFTER)
        if lifted > 1:
            self._granted.clear()
        self._deal_ahead(view, group, now)
        waiting, room = self._waiting[group], dict[PeerId, int]()
        resting: list[float] = []
        for peer, own in self._round.here.items():
            if own != group or self._load[peer] >= IN_FLIGHT * self._num_groups:
                continue
            if self._is_resting(peer, now):
                resting.append(self._peers[peer].rests_until)
            else:
                room[peer] = IN_FLIGHT * self._num_groups - self._load[peer]
        caps = {peer: max(lifted - 1, lifted * self._round.caps.get(peer, 0)) for peer in room}
        speeds = {peer: self._peers[peer].speed for peer in room if peer in self._peers}
        rates = {peer: rate_of(each) for peer, each in speeds.items() if each.num_updates}

        def deal(items: Items, among: Mapping[PeerId, int]) -> None:
            if not items or not among:
                return
            ready = replace(view, issued=items, router=Known(rates, caps, among, self._dealt))
            for given in self._rules.assign(ready):
                room[given.peer] -= len(given.items)
                for item in given.items:
                    self._assign(given.peer, given.group, waiting.pop(item), now)

        for item in [item for item, walk in waiting.items() if walk.lacking]:
            walk, others = waiting[item], self._others(waiting[item])
            deal(frozenset({item}), {peer: free for peer, free in room.items() if peer in others})
            if item in waiting and (not others or len(walk.lacking) < SAID_BY):
                deal(frozenset({item}), room)
        useful = {peer: free for peer, free in room.items() if not self._is_useless(peer)}
        kept = self._reserved()
        free = {item for item, walk in waiting.items() if not walk.lacking}
        deal(frozenset(free - kept), useful or room)
        self._again.pop(group, None)
        here = [peer for peer, own in self._round.here.items() if own == group]
        is_busy = any(self._out[peer] for peer in here)
        if not waiting or (is_busy and waiting.keys() <= kept):
            self._stuck_since.pop(group, None)
        if not waiting:
            return
        if here and not is_busy:
            since = self._stuck_since.setdefault(group, now)
            resting.append(now + LIFT_AFTER - (now - since) % LIFT_AFTER)
        if resting:
            self._again[group] = max(min(resting), now + FIRST_PAUSE)

    def grant(self, peer: PeerId, items: Sequence[Item]) -> Item | None:
        """One more of the next round's items, for who has done all that it was granted.

        `items`, ascending, are those that the round is expected to have.
        """
        own, place = self._next[peer], bisect_right(items, self._last_granted)
        if place == len(items) or len(own) >= self._round.caps.get(peer, 0):
            return None
        self._last_granted = items[place]
        own.append(items[place])
        return items[place]

    def _reserved(self) -> set[Item]:
        """Items of this round that are granted and not dealt yet."""
        return {item for items in self._granted.values() for item in items}

    def _deal_ahead(self, view: View, group: Group, now: float) -> None:
        """Give who has worked ahead all that it was granted, as soon as it is in the round."""
        waiting = self._waiting[group]
        for peer, items in [*self._granted.items()]:
            member = view.peers.get(peer)
            if member is not None and member.is_here and view.has_a_place(peer):
                if not view.can_work(peer):
                    continue  # it is still applying the seal
                counted = [1 for each in view.counted[group].values() if each.peer == peer]
                most = self._round.caps.get(peer, 0) - len(counted) - self._load[peer]
                if len(items) <= most and waiting.keys() >= {*items}:
                    self._ahead.update(items)
                    for item in items:
                        self._assign(peer, group, waiting.pop(item), now)
            del self._granted[peer]

    def _assign(self, peer: PeerId, group: Group, walk: Walk, now: float) -> None:
        self._dealt.setdefault(group, {})[walk.way.item] = peer
        self._load[peer] += 1
        assert walk.call is not None
        self._ask(walk, walk.call, peer, now)

    def _ask(self, walk: Walk, call: Call, peer: PeerId, now: float) -> None:
        task = Task(
            direction=call.direction,
            round=self._round_of(walk.way),
            item=walk.way.item,
            inputs=tuple(
                Input(name=name, digest=digest, holders=holders_of(walk.way, name, digest))
                for name, digest in call.inputs
            ),
            used=call.used,
        )
        out = walk.out = self._out[peer][name_of(task)] = Out(walk, peer, task, call.group, now)
        self._asked.add((peer, name_of(task)))
        self.news.add(peer)
        self._at(now + self._time_for(out), lambda at: self._expire(out, at))

    def _round_of(self, way: Way) -> RoundNumber:
        return self._round.validate_after if way.evaluates else self._round.number

    def _time_for(self, out: Out) -> float:
        """Seconds after which another peer is asked.

        What a peer was measured to take includes its queue; before its first answer the passes that
        it has of us are added. Where everybody is slow each deadline that has passed doubles the
        next one of its item.
        """
        if out.walk.way.evaluates:
            return EVALUATION_TIME
        speed = self._peer(out.peer).speed
        usual = WEIGHTS[out.task.direction] / speed.samples_per_second
        if not speed.num_updates:
            usual *= len(self._out[out.peer])
        return float(max(SHORTEST, TIMES_USUAL * usual) * 2**out.walk.late)

    def _peer(self, peer: PeerId) -> Peer:
        if peer not in self._peers:
            view = self._round.view
            worker = None if view is None else view.peers.get(peer)
            rate = 1 if worker is None else max(1, worker.rate)
            self._peers[peer] = Peer(Throughput(rate * WEIGHT_OF_ITEM / 10**6))
        return self._peers[peer]

    def _is_useless(self, peer: PeerId) -> bool:
        return peer in self._peers and self._peers[peer].is_useless

    def _is_resting(self, peer: PeerId, now: float) -> bool:
        return peer in self._peers and self._peers[peer].rests_until > now

    def _expire(self, out: Out, now: float) -> None:
        """No result in time: somebody else is asked, if there is somebody."""
        walk = out.walk
        if walk.out is not out:
            return
        walk.late += 1
        if walk.way.evaluates:
            self._fail(out, errors.DeadlineExceeded.code, "no result in time", ZERO_DIGEST, now)
        elif self._waits or not self._has_others(out):
            self._at(now + self._time_for(out), lambda at: self._expire(out, at))
        else:
            out.is_dropped = True
            self.news.add(out.peer)
            self._at(now + SILENT, lambda at: self._end_silence(out, at))

    def _has_others(self, out: Out) -> bool:
        return any(peer != out.peer for peer in self._able(out.group))

    def _able(self, group: Group) -> dict[PeerId, Member]:
        """Who of a group may be given items now."""
        view, here = self._round.view, self._round.here
        if view is None:
            return {}
        own = {p: view.peers[p] for p, its in here.items() if its == group and p in view.peers}
        return {peer: member for peer, member in own.items() if view.can_work(peer)}

    def _others(self, walk: Walk) -> set[PeerId]:
        """Peers that can make the pass: they have not failed it, their owner lacks no tensor."""
        assert walk.call is not None
        able, said = self._able(walk.call.group), self._sayers(walk)
        others = {peer for peer, member in able.items() if member.owner not in said}
        return {peer for peer in others.difference(walk.failed) if not self._is_useless(peer)}

    def _sayers(self, walk: Walk) -> set[Address]:
        """Owners who say that a tensor of a pass cannot be had."""
        members = {} if self._round.view is None else self._round.view.peers
        return {members[peer].owner for peer in walk.lacking if peer in members}

    def _end_silence(self, out: Out, now: float) -> None:
        if out.walk.out is out:
            self._tell_failed(out, errors.DeadlineExceeded.code, "silent")
            self.off[out.peer] = frozenset()
            self._rest(out.peer, now)
            for each in [*self._out[out.peer].values()]:
                self._release(each, now)

    def _release(self, out: Out, now: float) -> None:
        """Its peer does not make this pass any more."""
        walk = out.walk
        self._take_back(walk)
        if not walk.way.evaluates and walk.call is not None:
            self._free(walk.call.group, walk.way.item)
        if walk.call is not None:
            self._give(walk, walk.call, now)

    # ------------------------------------------------------------------------ what is handed in

    def take(self, peer: PeerId, said: NextItem, now: float) -> None:
        """Results and failures of a peer."""
        if said.is_first:
            self._note_lacks(peer, said.results)
        if self._is_gathering:  # these are from before this start
            self._awaited.discard(peer)
            for result in said.results:
                self._found[name_of(result)][peer] = result
            self._held |= {name_of(each): peer for each in said.holding} if said.is_first else {}
        for result in said.results:
            self._take_result(peer, result, now)
        for failure in said.failed:
            if (out := self._out[peer].get(name_of(failure))) is not None:
                self._take_failure(out, failure, now)
        held = {*said.holding}
        for name, out in [*self._out[peer].items()]:
            if out.is_told and name not in held:
                out.walk.failed.append(peer)
                self._rest(peer, now)
                self._release(out, now)

    def _note_lacks(self, peer: PeerId, results: Iterable[TaskResult]) -> None:
        """What counts of a peer and it does not hand in again is lost with its memory."""
        round = self._round
        if not round.may_lack or peer not in round.unclaimed:
            return
        counts = ("backward", "whole")
        own = {each.item for each in results if each.direction in counts}
        if lacked := round.unclaimed[peer] - own:
            self.lacked[peer] = lacked

    def _take_result(self, peer: PeerId, result: TaskResult, now: float) -> None:
        name, evaluates = name_of(result), result.direction == "evaluate"
        walk = self._walks.get((result.item, evaluates))
        if walk is None or walk.call is None or (peer, name) not in self._asked:
            return
        out = self._out[peer].get(name)
        if not self._fits(peer, name, walk.way, walk.call):
            return
        passed = _passed(peer, walk.call.group, result)
        try:
            check_answer(walk.way, walk.call, passed)
        except errors.Malformed as error:
            if out is not None:
                self._fail(out, error.code, error.message, ZERO_DIGEST, now)
            return
        about = self._peer(peer)
        about.failures = 0
        if out is not None and result.item not in self._ahead:
            seconds = now - out.began
            about.speed = about.speed.after(WEIGHTS[result.direction], seconds)
        self._take_back(walk)
        self._note(walk, walk.call, passed)
        self._go(walk, now)

    def _fits(self, peer: PeerId, name: TaskName, way: Way, call: Call) -> bool:
        """Whether what a peer has by this name is the pass that is asked for."""
        is_of_item = (name.round, name.item) == (self._round_of(way), way.item)
        is_of_group = self._round.here.get(peer) == call.group
        return is_of_item and is_of_group and name.direction == call.direction

    def _note(self, walk: Walk, call: Call, passed: Result) -> None:
        """A pass was made."""
        item, group, peer = walk.way.item, call.group, passed.peer
        walk.way = with_answer(walk.way, call, passed)
        if walk.way.evaluates:
            return
        if call.direction == "forward":
            about = {"stage": group, "item": item, "peer": peer}
            self._tell("item_forward", step=self._round.number, **about)
            self._free(group, item)
            self._dealt.setdefault(group, {})[item] = peer
            self._load[peer] += 1
        else:
            self._free(group, item)
            self.done[peer].append(passed)

    def _take_found(self, way: Way, call: Call) -> Result | None:
        """What somebody had made of this before we started, if it may count."""
        name = TaskName(direction=call.direction, round=self._round.number, item=way.item)
        for peer, result in self._found.get(name, {}).items():
            if self._fits(peer, name, way, call) and not way.evaluates:
                passed = _passed(peer, call.group, result)
                try:
                    check_answer(way, call, passed)
                except errors.Malformed:
                    continue
                if self._may_have_had(peer, call.group, way.item):
                    return passed
        return None

    # ------------------------------------------------------------------------------ what fails

    def _take_failure(self, out: Out, failure: Failure, now: float) -> None:
        walk, lacks = out.walk, Digest(failure.lacks)
        if failure.code == errors.Conflict.code and not walk.way.evaluates:
            self.off.setdefault(out.peer, frozenset({walk.way.item}))
        if walk.call is None or lacks not in dict(walk.call.inputs).values():
            self._fail(out, failure.code, failure.reason, ZERO_DIGEST, now)
        else:
            self._fail(out, failure.code, failure.reason, lacks, now)

    def _fail(self, out: Out, code: str, reason: str, lacks: Digest, now: float) -> None:
        """A peer has not made a pass: go on without it."""
        walk = out.walk
        self._tell_failed(out, code, reason)
        walk.failures += 1
        if walk.way.evaluates and walk.failures >= MOST_FAILURES:
            self._tell("not_validated", step=self._round.validate_after)
            self._rows = []
            self._take_back(walk)
            return self._abandon(evaluations=True)
        if lacks == ZERO_DIGEST:
            walk.failed.append(out.peer)
            self._rest(out.peer, now)
            return self._release(out, now)
        is_again = out.peer in walk.lacking
        walk.lacking.append(out.peer)
        if not self._is_believed(walk):
            if is_again:
                self._rest(out.peer, now)
            return self._release(out, now)
        self._take_back(walk)
        assert walk.call is not None
        if not walk.way.evaluates:
            self._free(walk.call.group, walk.way.item)
        self._lose(walk, lacks, now)

    def _is_believed(self, walk: Walk) -> bool:
        """Whether two owners say it, or one says it twice where nobody else could tell."""
        if len(walk.lacking) < SAID_BY:
            return False
        return walk.way.evaluates or len(self._sayers(walk)) > 1 or not self._others(walk)

    def _rest(self, peer: PeerId, now: float) -> None:
        """Ask others for a while."""
        about = self._peer(peer)
        about.rests_until = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(16, about.failures))
        about.failures += 1

    def _tell_failed(self, out: Out, code: str, reason: str) -> None:
        task = out.task
        about = {"step": task.round, "stage": out.group, "item": task.item, "peer": out.peer}
        self._tell("item_failed", code=code, reason=reason, **about)

    def _lose(self, walk: Walk, missing: Digest, now: float) -> None:
        """Nobody has this tensor: have it made again, or wait a little for who may be back."""
        self._tell("tensor_lost", step=self._round.number, item=walk.way.item, digest=missing)
        for results in self._found.values():
            for peer in [
                p for p, each in results.items() if missing in dict(each.tensors).values()
            ]:
                del results[peer]
        again = lost(walk.way, missing)
        if again is not None:
            for group in walk.way.forwards.keys() - again.forwards.keys():
                maker = walk.way.forwards[group].peer
                self._peer(maker).blamed += walk.lacking[-SAID_BY:]
                self._rest(maker, now)
                self._free(group, walk.way.item)
            walk.way = again
            return self._go(walk, now)
        walk.tries += 1
        if walk.tries == LOST_AFTER:
            self._tell("item_gave_up", step=self._round.number, item=walk.way.item)
            self.gone.add(walk.way.item)
            return self._remove(walk)
        self._pause(walk, now + FIRST_PAUSE * 2 ** (walk.tries - 1))

    def _pause(self, walk: Walk, until: float) -> None:
        def go_on(now: float) -> None:
            if self._walks.get(walk.name) is walk and walk.out is None:
                self._go(walk, now)

        self._at(until, go_on)

    def _note_loss(self, passed: Result) -> None:
        if passed.loss is None:
            return
        self._losses[passed.item] = passed.loss
        weights = self._round.row_weights
        if len(self._losses) == len(weights):
            losses = (self._losses[ItemNumber(rows)] for rows in range(len(weights)))
            self.validated = self._round.validate_after, rounded_mean(losses, weights)


def _passed(peer: PeerId, group: Group, said: TaskResult) -> Result:
    return Result(group, said.item, peer, said.tensors, said.loss, said.given)
