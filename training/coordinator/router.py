"""Which peer makes which pass of an item, until when, and what it means when it does not.

The router decides and never waits: it is told how the job stands, what peers hand in, and what time
it is, and says what each peer is to hold. It is in memory alone. A peer that begins a session hands
in all that it has of the step; a router that has just started deals nothing before everybody who is
to come back has done so, or had `redo_after` for it, and goes on from there.

What a failed pass means: a tensor cannot be had: nobody's fault here, it is made again. No result
in time: another peer, as the authors of SWARM do; what comes late still counts where nobody was
faster. Anything else: the peer is banned until it is listed again. A stage in which nobody may be
asked is waited for; when that takes long, the caps of those that are left are lifted pro rata
(docs/protocol.md 7), so that a peer that never answers holds up nothing.

Invariants: a pass is with one peer at a time; attempts of a unit ascend, restarts included, and
only a backward pass by the peer of its forward pass has the same; a result counts only for a pass
that its peer was asked for, or, after a restart, within its quota. Units: seconds of one clock.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber, UnitId
from training.coordinator.choosing import Choosing, Stand, Workers
from training.strategies.every_step.passes import (
    AskBackward,
    AskForward,
    Call,
    Copies,
    Passed,
    Stretch,
    Way,
    check_answer,
    copies_of,
    lost,
    next_call,
    set_out,
    stretches_of,
    with_answer,
)
from training.swarm.routing import BACKWARD, FORWARD, NO_STEP
from training.swarm.state import Copy, Place
from training.telling import Tell
from training.transport.calls import Direction, ItemTasks, NextItem, Result, Task, TaskName

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
LIFT_AFTER = 5.0  # seconds in which nobody could be asked within the caps
IN_FLIGHT = 2  # units on their way for each worker that there is, so that none need wait
LOST_AFTER = 4  # tries to get a tensor that only a counted copy can have
GROUPS_AT_A_TIME = 4  # of validation rows
MOST_FAILURES = 5  # of one group: how well a model does is not worth stopping a job for


@dataclass(frozen=True)
class View:
    """How the job stands, as far as it matters here."""

    step: StepNumber
    missing: Sequence[Place] = ()
    done: Mapping[Place, Copy] = field(default_factory=dict)
    workers: Workers = field(default_factory=dict)  # may be given units now
    here: Mapping[PeerId, StageIndex] = field(default_factory=dict)  # may end what they have begun
    validate_after: StepNumber = NO_STEP  # none: no validation is due
    num_groups: int = 0


@dataclass(eq=False)
class _Walk:
    """A unit, or a group of validation rows, on its way."""

    way: Way
    rest: list[Stretch]
    copies: Copies = ()
    call: Call | None = None
    out: "_Out | None" = None
    avoid: set[PeerId] = field(default_factory=set)  # failed at this call
    without: set[PeerId] = field(default_factory=set)  # said that they cannot get its tensor
    tries: int = 0  # for a tensor that only a counted copy can have
    failures: int = 0

    @property
    def name(self) -> tuple[UnitId, bool]:
        return self.way.stretch.unit, self.way.stretch.evaluates


@dataclass(eq=False)
class _Out:
    """A task that a peer has, or is about to hear of."""

    walk: _Walk
    peer: PeerId
    stand: Stand
    task: Task
    samples: float
    began: float


@dataclass
class _Stall:
    """Nobody of a stage may be asked. Remembered until somebody answers: else a peer that comes
    back only to fail again would keep the caps of the others as they are."""

    since: float
    at: float  # when to try again
    span: float = FIRST_PAUSE
    walks: list[_Walk] = field(default_factory=list)


class Router:
    """Of one job."""

    def __init__(
        self,
        num_stages: int,
        *,
        seed: int,
        attempts_from: int,
        tell: Tell,
        awaited: Iterable[PeerId] = (),
        until: float = 0.0,
        max_units: int | None = None,
    ) -> None:
        """Begin; `look` comes next.

        Args:
            num_stages: Of the job.
            seed: Of the ties between equal peers.
            attempts_from: Above all attempts before this start.
            tell: The log.
            awaited: Who may have work of the step from before this start.
            until: Nothing is dealt before they have said what, or it is so late.
            max_units: Units on their way in all, at most; 1 makes a deterministic order.
        """
        self._last, self._attempts_from = StageIndex(num_stages - 1), attempts_from
        self._tell, self._max_units = tell, max_units
        self.news: set[PeerId] = set()
        """Peers whose tasks have changed, until they are taken from here."""
        self.ended: dict[UnitId, Copies | None] = {}
        """What units came to, until it is `reported`; None: only a counted copy has what the rest
        is made of."""
        self.validated: tuple[StepNumber, int] | None = None
        """The step whose state was validated last, and its loss in 1e-6 nats per token."""
        self._view = View(NO_STEP)
        self._awaited, self._until = {*awaited}, until
        self._is_gathering, self._has_reported, self._is_told = True, False, False
        self._found: list[tuple[PeerId, Result]] = []  # made before this start
        self._held: list[tuple[PeerId, TaskName]] = []  # asked for before it
        self._choosing = Choosing(seed)
        self._stalls: dict[Stand, _Stall] = {}
        self._out: defaultdict[PeerId, dict[TaskName, _Out]] = defaultdict(dict)
        self._late: set[tuple[PeerId, TaskName]] = set()  # would still count
        self._walks: dict[tuple[UnitId, bool], _Walk] = {}
        self._waiting: dict[UnitId, tuple[Stretch, ...]] = {}
        self._groups: list[UnitId] = []  # waiting likewise
        self._losses: list[int] = []
        self._times = Counter[UnitId]()  # how often a unit of this step has set out
        self._deadlines = Counter[UnitId]()  # that passed in this step
        self._attempts: dict[UnitId, int] = {}
        self._moments: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = count()

    # ---------------------------------------------------------------------------- how things are

    def look(self, view: View, now: float) -> None:
        """Go by this from now on."""
        before, self._view = self._view, view
        if view.step != before.step:
            self._begin_step(is_first=not before.step)
        if view.validate_after != before.validate_after:
            self._abandon(evaluations=True)
            groups = view.num_groups if view.validate_after else 0
            self._groups, self._losses = [UnitId(group) for group in range(groups)], []
        self._awaited -= before.here.keys() - view.here.keys()
        self._list(before, now)
        for peer in self._out.keys() - view.here.keys():
            for out in [*self._out[peer].values()]:
                self._fail(out, _failed_by(errors.PeerUnreachable("it is not here")), now)
        if view.missing is not before.missing or self._has_reported:
            self._has_reported = False
            self._wait()
            if self._waiting and not self._is_told:
                self._is_told = True
                self._tell("step_begun", step=view.step, units=len(self._waiting))
        self._fill(now)

    @property
    def step(self) -> StepNumber:
        """The step that `ended` is of."""
        return self._view.step

    def reported(self) -> None:
        """What units came to is in the state that is looked at next; or it did not fit."""
        self.ended, self._has_reported = {}, True

    def _begin_step(self, *, is_first: bool) -> None:
        self._abandon(evaluations=False)
        if not is_first:
            self._found, self._held = [], []
        self.ended = {}
        for of_the_step in (self._times, self._attempts, self._deadlines, self._late):
            of_the_step.clear()
        self._has_reported, self._is_told = True, False

    def _abandon(self, *, evaluations: bool) -> None:
        """What is on its way is of a step that is over, or of a state that is gone."""
        for walk in [walk for name, walk in self._walks.items() if name[1] == evaluations]:
            del self._walks[walk.name]
            self._take_back(walk)

    def _take_back(self, walk: _Walk) -> None:
        if walk.out is not None:
            del self._out[walk.out.peer][walk.out.task.name]
            self.news.add(walk.out.peer)
            walk.out = None

    def _wait(self) -> None:
        """Units that are missing and not on their way, with what of them is done."""
        missing = defaultdict[UnitId, set[StageIndex]](set)
        for stage, unit in self._view.missing:
            missing[unit].add(stage)
        self._waiting = {
            unit: stretches_of(unit, frozenset(stages), self._done_of(unit))
            for unit, stages in missing.items()
            if (unit, False) not in self._walks and unit not in self.ended
        }

    def _done_of(self, unit: UnitId) -> Mapping[StageIndex, Copy]:
        done, stages = self._view.done, map(StageIndex, range(self._last + 1))
        return {stage: done[stage, unit] for stage in stages if (stage, unit) in done}

    def _list(self, before: View, now: float) -> None:
        view = self._view
        is_new = (view.step, view.validate_after) != (before.step, before.validate_after)
        for stage, workers in view.workers.items():
            if is_new or workers != before.workers.get(stage):
                self._choosing.list_stage(view.step, stage, workers)
                for evaluates in (False, True)[: 1 + bool(view.validate_after)]:
                    self._try_again((stage, evaluates), now)

    def _try_again(self, stand: Stand, now: float, times: int = 1) -> None:
        """Ask those that are listed, and may be tried again, for what waits for somebody."""
        stage, evaluates = stand
        if evaluates:
            self._choosing.announce_groups(stage, self._view.num_groups)
        else:
            missing = [unit for each, unit in self._view.missing if each == stage]
            counted = Counter(c.peer for (each, _), c in self._view.done.items() if each == stage)
            self._choosing.announce(stage, missing, counted, times)
        if (stall := self._stalls.get(stand)) is not None:
            walks, stall.walks = stall.walks, []
            for walk in walks:
                walk.avoid.clear()
                self._give(walk, now)

    # -------------------------------------------------------------------------------------- time

    def pass_time(self, now: float) -> None:
        """Do what is due."""
        while self._moments and self._moments[0][0] <= now:
            heappop(self._moments)[2](now)
        for stand, stall in [*self._stalls.items()]:
            if stall.walks and stall.at <= now:
                stall.span = min(2 * stall.span, LONGEST_PAUSE)
                stall.at = now + stall.span
                self._try_again(stand, now, 1 + int((now - stall.since) / LIFT_AFTER))
        self._fill(now)

    def next_moment(self) -> float | None:
        """When `pass_time` has something to do."""
        moments = [stall.at for stall in self._stalls.values() if stall.walks]
        moments += [at for at, _, _ in self._moments[:1]] + [self._until] * self._is_gathering
        return min(moments, default=None)

    def _at(self, moment: float, act: Callable[[float], None]) -> None:
        heappush(self._moments, (moment, next(self._number), act))

    # -------------------------------------------------------------------------------- what is out

    def owed(self, peer: PeerId, holding: Iterable[TaskName]) -> ItemTasks:
        """Tasks that a peer that holds these does not know of, and those that nobody wants."""
        own, names = self._out[peer], {*holding}
        tasks = tuple(out.task for name, out in own.items() if name not in names)
        drops = () if self._is_gathering else tuple(name for name in names if name not in own)
        return ItemTasks(tasks=tasks, drops=drops)

    def _fill(self, now: float) -> None:
        """Send out groups, or else units, the lowest first, as long as there is room."""
        if self._is_gathering:
            if self._awaited and now < self._until:
                return
            self._is_gathering = False
            self.news |= self._view.here.keys()  # what they hold may be wanted no more
        while self._groups and len(self._walks) < GROUPS_AT_A_TIME:
            group = Stretch(self._groups.pop(0), StageIndex(0), self._last, evaluates=True)
            self._set_out((group,), now)
        if any(evaluates for _, evaluates in self._walks):
            return  # the state of the step before is gone as soon as all units are done
        room = max(1, IN_FLIGHT * sum(len(own) for own in self._view.workers.values()))
        room = room if self._max_units is None else min(room, self._max_units)
        while self._waiting and len(self._walks) < room:
            self._set_out(self._waiting.pop(next(iter(self._waiting))), now)

    def _set_out(self, stretches: Sequence[Stretch], now: float) -> None:
        walk = _Walk(set_out(stretches[0]), [*stretches[1:]])
        (unit, evaluates), self._walks[walk.name] = walk.name, walk
        if evaluates or not (times := self._times[unit]):
            self._go(walk, now)
        else:  # what it came to before did not count
            self._pause(walk, now + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(times, 16)))
        self._times[unit] += not evaluates

    def _pause(self, walk: _Walk, until: float) -> None:
        def go_on(now: float) -> None:
            if self._walks.get(walk.name) is walk and walk.out is None:
                self._go(walk, now)

        self._at(until, go_on)

    def _go(self, walk: _Walk, now: float) -> None:
        """Ask for what comes next on its way, or end it."""
        while True:
            call, stretch = next_call(walk.way), walk.way.stretch
            if call is not None:
                if (passed := self._take_found(stretch, call)) is None:
                    break
                walk.way = with_answer(walk.way, call, passed)
            elif walk.rest:
                walk.copies += copies_of(walk.way)
                walk.way = set_out(walk.rest.pop(0))
            else:
                return self._end(walk, walk.copies + copies_of(walk.way))
        walk.call, walk.avoid, walk.without = call, set(), set()
        self._give(walk, now)

    def _give(self, walk: _Walk, now: float) -> None:
        """Have somebody make the pass that a walk waits for, as soon as somebody may be asked."""
        call, (unit, evaluates) = walk.call, walk.name
        if call is None or self._walks.get(walk.name) is not walk:
            return  # abandoned meanwhile
        stand, samples = (call.stage, evaluates), _samples(walk.way.stretch, call)
        sticky = None if isinstance(call, AskForward) else call.sticky
        if (held := self._take_held(walk.way.stretch, call)) is not None:
            peer, attempt = held
            self._choosing.charge(stand, peer, samples)
        elif sticky is not None and self._may_end(stand, sticky.peer, walk):
            peer, attempt = sticky.peer, sticky.attempt
            self._choosing.charge(stand, peer, samples)
        elif (chosen := self._choosing.choose(stand, unit, samples, walk.avoid)) is not None:
            peer, attempt = chosen, 0 if evaluates else self._next_attempt(unit)
        else:
            stall = self._stalls.setdefault(stand, _Stall(since=now, at=now + FIRST_PAUSE))
            stall.walks.append(walk)
            return
        task = _task(call, walk.way.stretch, self._step_of(walk.way.stretch), attempt)
        out = _Out(walk, peer, stand, task, samples, now)
        walk.out = self._out[peer][task.name] = out
        self.news.add(peer)
        late, num_open = self._deadlines[unit], len(self._out[peer])
        span = self._choosing.time_for(stand, peer, samples, num_open, 0 if evaluates else late)
        self._at(now + span, lambda at: self._expire(out, at))

    def _may_end(self, stand: Stand, peer: PeerId, walk: _Walk) -> bool:
        is_here = peer in self._view.here and peer not in walk.avoid
        return is_here and self._choosing.is_able(stand, peer)

    def _step_of(self, stretch: Stretch) -> StepNumber:
        return self._view.validate_after if stretch.evaluates else self._view.step

    def _next_attempt(self, unit: UnitId) -> int:
        self._attempts[unit] = max(self._attempts.get(unit, 0) + 1, self._attempts_from)
        return self._attempts[unit]

    def _expire(self, out: _Out, now: float) -> None:
        if out.walk.out is out:
            self._late.add((out.peer, out.task.name))
            self._fail(out, _failed_by(errors.DeadlineExceeded("no result in time")), now)

    # ------------------------------------------------------------------------ what is handed in

    def take(self, peer: PeerId, said: NextItem, now: float) -> None:
        """Results and failures of a peer."""
        if self._is_gathering:  # these are from before this start
            self._awaited.discard(peer)
            self._found += [(peer, result) for result in said.results]
            self._held += [(peer, name) for name in said.holding] if said.is_first else []
        for result in said.results:
            self._take_result(peer, result, now)
        for failure in said.failed:
            if (out := self._out[peer].get(failure.task)) is not None:
                self._fail(out, (failure.code, failure.reason, failure.lacks), now)
        self._fill(now)

    def _take_result(self, peer: PeerId, result: Result, now: float) -> None:
        unit, evaluates = result.leaf.unit, result.direction == "evaluate"
        name = result.name
        out, walk = self._out[peer].get(name), self._walks.get((unit, evaluates))
        if walk is None or not (out or (peer, name) in self._late):
            return
        call, stretch = walk.call, walk.way.stretch
        if call is None or not self._is_asked(peer, name, stretch, call):
            return
        try:
            check_answer(stretch, call, result.leaf)
        except errors.Malformed as error:
            if out is not None:
                self._fail(out, _failed_by(error), now)
            return
        if out is not None:
            self._choosing.note_answer(out.stand, peer, out.samples, now - out.began)
        self._take_back(walk)
        if (stall := self._stalls.pop((call.stage, evaluates), None)) is not None:
            for waiting in stall.walks:
                self._give(waiting, now)
        walk.way = with_answer(walk.way, call, Passed(peer, result.attempt, result.leaf))
        self._go(walk, now)

    def _is_asked(self, peer: PeerId, name: TaskName, stretch: Stretch, call: Call) -> bool:
        """Whether what a peer has by this name is the pass that is asked for."""
        is_of_unit = (name.step, name.unit) == (self._step_of(stretch), stretch.unit)
        is_of_stage = self._view.here.get(peer) == call.stage
        return is_of_unit and is_of_stage and name.direction == _direction(stretch, call)

    def _take_found(self, stretch: Stretch, call: Call) -> Passed | None:
        """What somebody had made of this before we started, if it may count."""
        for peer, result in self._found:
            if self._is_asked(peer, result.name, stretch, call) and not stretch.evaluates:
                try:
                    check_answer(stretch, call, result.leaf)
                except errors.Malformed:
                    continue
                if self._choosing.adopt((call.stage, False), stretch.unit, peer):
                    return Passed(peer, result.attempt, result.leaf)
        return None

    def _take_held(self, stretch: Stretch, call: Call) -> tuple[PeerId, int] | None:
        """Who was asked for this before we started, and as which attempt; once."""
        for peer, name in self._held:
            if self._is_asked(peer, name, stretch, call):
                self._held.remove((peer, name))
                stand = (call.stage, stretch.evaluates)
                is_able = self._choosing.adopt(stand, stretch.unit, peer)
                return (peer, name.attempt) if is_able else None
        return None

    # ------------------------------------------------------------------------------ what fails

    def _fail(self, out: _Out, failed: "_Failed", now: float) -> None:
        """A peer has not made a pass: blame whom that shows to be at fault, and go on."""
        walk, peer, call, (code, reason, lacks) = out.walk, out.peer, out.walk.call, failed
        unit, evaluates = walk.name
        self._take_back(walk)
        about = {"step": out.task.step, "stage": out.stand[0], "unit": unit, "peer": peer}
        self._tell("unit_failed", code=code, reason=reason, **about)
        self._choosing.note_failure(out.stand, unit, peer, code, lacks)
        self._deadlines[unit] += code == errors.DeadlineExceeded.code
        walk.avoid.add(peer)
        walk.failures += 1
        if evaluates and walk.failures >= MOST_FAILURES:
            self._tell("not_validated", step=self._view.validate_after)
            self._groups = []
            return self._abandon(evaluations=True)
        if lacks != ZERO_DIGEST and lacks in _inputs(call):
            # One that is asked a second time is the only one with room in its cap.
            is_certain = peer in walk.without or len(walk.without | {peer}) > 1
            walk.without.add(peer)
            if is_certain or not self._choosing.has_others(out.stand, walk.without):
                return self._lose(walk, lacks, now)
        self._give(walk, now)

    def _lose(self, walk: _Walk, missing: Digest, now: float) -> None:
        """Nobody has this tensor: have it made again, or wait a little for who may be back."""
        unit, _ = walk.name
        self._tell("tensor_lost", step=self._view.step, unit=unit, digest=missing)
        self._found = [
            each for each in self._found if missing not in (each[1].leaf.y, each[1].leaf.dx)
        ]
        again = lost(walk.way, missing)
        if again is not None:
            self._choosing.blame(unit, walk.way.keepers.get(missing, ()), walk.without)
            walk.way = again
            return self._go(walk, now)
        walk.tries += 1
        if walk.tries == LOST_AFTER:
            return self._end(walk, None)
        self._pause(walk, now + FIRST_PAUSE * 2 ** (walk.tries - 1))

    # ------------------------------------------------------------------------------- what ends

    def _end(self, walk: _Walk, copies: Copies | None) -> None:
        unit, evaluates = walk.name
        del self._walks[walk.name]
        if evaluates:
            return self._note_loss(walk.way.forwards.get(self._last))
        if copies is None:
            self._tell("unit_gave_up", step=self._view.step, unit=unit)
        self.ended[unit] = copies

    def _note_loss(self, passed: Passed | None) -> None:
        if passed is None or passed.leaf.loss is None:
            return
        self._losses.append(passed.leaf.loss)
        number = self._view.num_groups
        if len(self._losses) == number:
            mean = (2 * sum(self._losses) + number) // (2 * number)  # halves up
            self.validated = self._view.validate_after, mean


_Failed: TypeAlias = tuple[str, str, Digest]
"""An error's code and reason, and the tensor that the peer lacks, or zero."""


def _failed_by(error: errors.TallystickError) -> _Failed:
    return error.code, error.message, ZERO_DIGEST


def _inputs(call: Call | None) -> list[Digest]:
    held = [] if call is None else [call.x] if isinstance(call, AskForward) else [call.x, call.dy]
    return [each.digest for each in held if each is not None]


def _samples(stretch: Stretch, call: Call) -> float:
    if isinstance(call, AskBackward):
        return BACKWARD
    counts = stretch.ends_at(call.stage) and not stretch.evaluates
    return FORWARD + BACKWARD if counts else FORWARD


def _direction(stretch: Stretch, call: Call) -> Direction:
    if isinstance(call, AskBackward):
        return "backward"
    return "evaluate" if stretch.evaluates else "forward"


def _task(call: Call, stretch: Stretch, step: StepNumber, attempt: int) -> Task:
    backward = call if isinstance(call, AskBackward) else None
    return Task(
        direction=_direction(stretch, call),
        step=step,
        unit=stretch.unit,
        attempt=attempt,
        x=call.x,
        dy=backward.dy if backward else None,
        y=backward.y if backward else ZERO_DIGEST,
        dx=call.dx,
    )
