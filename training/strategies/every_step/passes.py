"""One unit's way through stages that have not done it: what is asked next, and of what.

Forward from the first missing stage up, then backward down to it. At the ends stand copies that
count already (a redo, docs/protocol.md 3.4): their tensors are where the way begins and ends, and
the new copies carry the digests that those neighbours really used. A tensor that nobody has any
more is made again by the stage that made it; one of a copy that counts cannot be.

Invariant: copies of a finished way fit each other and both ends, link by link.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, UnitId
from contracts.terms.messages import UnitLeaf
from training.swarm.state import Copy, Place
from training.transport.calls import Held

MAX_HOLDERS = 8


@dataclass(frozen=True)
class Stretch:
    """Missing stages of a unit, `first` to `last`, and the copies below and above them.

    None below: `first` is the first stage. None above: `last` is the last one.
    """

    unit: UnitId
    first: StageIndex
    last: StageIndex
    below: Copy | None = None
    above: Copy | None = None
    evaluates: bool = False  # `unit` numbers a group of validation rows, of which nothing counts

    def ends_at(self, stage: StageIndex) -> bool:
        """Whether `stage` is the model's last: its forward pass is also its backward pass."""
        return stage == self.last and self.above is None


@dataclass(frozen=True)
class Passed:
    """A pass through a stage: who computed it, and which tensors it read and made."""

    peer: PeerId
    attempt: int
    leaf: UnitLeaf


@dataclass(frozen=True)
class AskForward:
    """Ask any peer of the stage for the forward pass; `dx`: as in `calls.Task`."""

    stage: StageIndex
    x: Held | None
    dx: Digest = ZERO_DIGEST


@dataclass(frozen=True)
class AskBackward:
    """Ask for the backward pass: `sticky`, who keeps the graph, if there is one, else anybody."""

    stage: StageIndex
    x: Held | None
    dy: Held
    y: Digest
    dx: Digest
    sticky: Passed | None


Call: TypeAlias = AskForward | AskBackward

Copies: TypeAlias = tuple[tuple[Place, Copy], ...]


@dataclass(frozen=True)
class Way:
    """How far a stretch has come."""

    stretch: Stretch
    forwards: Mapping[StageIndex, Passed] = field(default_factory=dict)
    backwards: Mapping[StageIndex, Passed] = field(default_factory=dict)
    keepers: Mapping[Digest, tuple[PeerId, ...]] = field(default_factory=dict)
    again: frozenset[StageIndex] = frozenset()
    """Stages whose y is gone: their forward pass is repeated, the rest stands if y is the same."""


def set_out(stretch: Stretch) -> Way:
    """At the beginning of a stretch."""
    keepers: dict[Digest, tuple[PeerId, ...]] = {}
    if stretch.below is not None:
        keepers[stretch.below.y] = (stretch.below.peer,)
    if stretch.above is not None:
        keepers[stretch.above.dx] = (stretch.above.peer,)
    return Way(stretch, keepers=keepers)


def stretches_of(
    unit: UnitId, missing: frozenset[StageIndex], copies: Mapping[StageIndex, Copy]
) -> tuple[Stretch, ...]:
    """Runs of missing stages, each between the copies that are there."""
    found: list[Stretch] = []
    for stage in sorted(missing):
        if found and found[-1].last + 1 == stage:
            found[-1] = replace(found[-1], last=stage)
        else:
            found.append(Stretch(unit, stage, stage, below=copies.get(StageIndex(stage - 1))))
    return tuple(replace(each, above=copies.get(StageIndex(each.last + 1))) for each in found)


def next_call(way: Way) -> Call | None:
    """What is to be asked next; None at the end of the way."""
    stretch = way.stretch
    for number in range(stretch.first, stretch.last + 1):
        stage = StageIndex(number)
        # The upper end's forward pass is repeated by its backward pass, where there is one.
        is_needed = stage < stretch.last or stretch.above is None
        if is_needed and (stage not in way.forwards or stage in way.again):
            dx = _used_below(way, stage) if stretch.ends_at(stage) else ZERO_DIGEST
            return AskForward(stage, _x(way, stage), dx)
    for number in range(stretch.last, stretch.first - 1, -1):
        stage = StageIndex(number)
        if stage not in way.backwards and not stretch.evaluates:
            return _ask_backward(way, stage)
    return None


def with_answer(way: Way, call: Call, passed: Passed) -> Way:
    """The way after an answer that `check_answer` let through."""
    kept = _kept(way, passed)
    match call:
        case AskForward(stage):
            return _forwarded(replace(way, keepers=kept), stage, passed)
        case AskBackward(stage):
            return replace(way, keepers=kept, backwards={**way.backwards, stage: passed})


def lost(way: Way, missing: Digest) -> Way | None:
    """Nobody has this tensor: make it again; None where only a copy that counts could."""
    keepers = {name: peers for name, peers in way.keepers.items() if name != missing}
    way = replace(way, keepers=keepers)
    for stage, passed in way.backwards.items():
        if passed.leaf.dx == missing:
            backwards = {s: each for s, each in way.backwards.items() if s != stage}
            again = way.again | {stage} if way.stretch.ends_at(stage) else way.again
            return replace(way, backwards=backwards, again=again)
    for stage, passed in way.forwards.items():
        if passed.leaf.y == missing:
            return replace(way, again=way.again | {stage})
    return None


def copies_of(way: Way) -> Copies:
    """The copies that a finished way has made, lowest stage first."""
    return tuple(
        ((stage, way.stretch.unit), copy_of(passed))
        for stage, passed in sorted(way.backwards.items())
    )


def copy_of(passed: Passed) -> Copy:
    """What counts of a backward pass."""
    leaf = passed.leaf
    return Copy(passed.peer, passed.attempt, x=leaf.x, y=leaf.y, dy=leaf.dy, dx=leaf.dx)


def _forwarded(way: Way, stage: StageIndex, passed: Passed) -> Way:
    before = way.forwards.get(stage)
    forwards, backwards = {**way.forwards, stage: passed}, dict(way.backwards)
    if before is not None and before.leaf.y != passed.leaf.y:
        # Other bytes than before: what higher stages made of those does not fit any more.
        forwards = {s: each for s, each in forwards.items() if s <= stage}
        backwards = {s: each for s, each in backwards.items() if s < stage}
    if way.stretch.ends_at(stage):
        backwards[stage] = passed
    return replace(way, forwards=forwards, backwards=backwards, again=way.again - {stage})


def _ask_backward(way: Way, stage: StageIndex) -> AskBackward:
    above = way.stretch.above
    if stage == way.stretch.last:
        assert above is not None  # else the forward pass has counted it
        y, dy = above.x, above.dx
    else:
        y = way.forwards[stage].leaf.y
        dy = way.backwards[StageIndex(stage + 1)].leaf.dx
    dx, held = _used_below(way, stage), _held(way, dy)
    return AskBackward(stage, _x(way, stage), held, y, dx, way.forwards.get(stage))


def _used_below(way: Way, stage: StageIndex) -> Digest:
    """The dx of this stage that a copy which counts was made of; zero if there is none."""
    below = way.stretch.below
    return below.dy if stage == way.stretch.first and below is not None else ZERO_DIGEST


def _x(way: Way, stage: StageIndex) -> Held | None:
    below = way.stretch.below
    if stage > way.stretch.first:
        return _held(way, way.forwards[StageIndex(stage - 1)].leaf.y)
    return None if below is None else _held(way, below.y)


def _held(way: Way, name: Digest) -> Held:
    return Held(digest=name, holders=way.keepers[name][:MAX_HOLDERS])


def _kept(way: Way, passed: Passed) -> dict[Digest, tuple[PeerId, ...]]:
    """Who has which tensor, now that `passed.peer` has read some and made others."""
    keepers, made = dict(way.keepers), passed.leaf
    for name in {made.x, made.y, made.dy, made.dx} - {ZERO_DIGEST}:
        others = tuple(peer for peer in keepers.get(name, ()) if peer != passed.peer)
        keepers[name] = (*others, passed.peer)
    return keepers


def check_answer(stretch: Stretch, call: Call, made: UnitLeaf) -> None:
    """Refuse digests that are not those of the question, or that this stage cannot have.

    Raises:
        Malformed: the answer does not fit the question.
    """
    is_first = call.stage == stretch.first and stretch.below is None
    is_last = stretch.ends_at(call.stage)
    _need(call.x is None or made.x == call.x.digest, "another x")
    _need(is_last == (made.loss is not None), "a loss on the last stage, and there alone")
    _need(is_last == (made.y == ZERO_DIGEST), "a y on all stages but the last")
    if isinstance(call, AskBackward):
        _need(made.dy == call.dy.digest and made.y == call.y, "another y or dy")
    if stretch.evaluates:
        return
    _need(call.dx in (ZERO_DIGEST, made.dx), "another dx")
    if isinstance(call, AskBackward) or is_last:
        _need(is_first == (made.dx == ZERO_DIGEST), "a dx on all stages but the first")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(f"the answer names {problem}")
