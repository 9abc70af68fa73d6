"""One item's way through the stages of `every_step`: what is asked next, of which tensors. Pure.

Forward from below up to the last stage, whose one pass is both, then backward down. Stages that
count already are passed over: their tensors are where the way goes on, and what is made between
them is said to be what those neighbours really used (`given`, docs/protocol.md 3). A tensor that
nobody has any more is made again by the stage that made it; one of a result that counts cannot be.

With one stage the way is one pass. Of an evaluation only forward passes are made, and none counts.
Invariant: results of a finished way fit each other, name by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, PeerId, StageIndex
from contracts.terms.work import LeafNames, leaf_names
from training.strategies.port import Direction, Group, Item, Result

MAX_HOLDERS = 8


@dataclass(frozen=True)
class Call:
    """The pass that comes next."""

    direction: Direction
    group: Group
    inputs: tuple[tuple[str, Digest], ...]
    used: tuple[tuple[str, Digest], ...] = ()  # of what it makes, as neighbours that count have it


@dataclass(frozen=True)
class Way:
    """How far an item, or a group of validation rows, has come."""

    item: Item
    num_groups: int
    evaluates: bool = False
    done: Mapping[Group, Result] = field(default_factory=dict)  # counts
    forwards: Mapping[Group, Result] = field(default_factory=dict)  # of stages that do not count


def next_call(way: Way) -> Call | None:
    """What is to be asked next; None at the end of the way."""
    last = way.num_groups - 1
    for number in range(way.num_groups):
        group = StageIndex(number)
        is_needed = group == last or StageIndex(number + 1) not in way.done
        if group not in way.done and group not in way.forwards and is_needed:
            return _ask_up(way, group)
    if way.evaluates:
        return None
    for number in range(last - 1, -1, -1):
        if (group := StageIndex(number)) not in way.done:
            return _ask_backward(way, group)
    return None


def with_answer(way: Way, call: Call, passed: Result) -> Way:
    """The way after a pass that `check_answer` let through."""
    if call.direction in ("backward", "whole"):
        forwards = {group: each for group, each in way.forwards.items() if group != call.group}
        return replace(way, done={**way.done, call.group: passed}, forwards=forwards)
    own, forwards = _names(way, call.group), {**way.forwards, call.group: passed}
    above = way.forwards.get(StageIndex(call.group + 1))
    if above is not None and above.tensor(own.y) != passed.tensor(own.y):
        # Other bytes than before: what higher stages made of those does not fit any more.
        forwards = {group: each for group, each in forwards.items() if group <= call.group}
    return replace(way, forwards=forwards)


def lost(way: Way, missing: Digest) -> Way | None:
    """Nobody has this tensor: make it again; None where only a result that counts had it."""
    makers = [
        group
        for group, passed in way.forwards.items()
        if passed.tensor(_names(way, group).y) == missing
    ]
    if not makers:
        return None
    forwards = {group: each for group, each in way.forwards.items() if group not in makers}
    return replace(way, forwards=forwards)


def holders_of(way: Way, name: str, digest: Digest) -> tuple[PeerId, ...]:
    """Who has read or made a tensor, the lowest stage first."""
    found = [
        passed.peer
        for group in range(way.num_groups)
        for passed in (way.done.get(StageIndex(group)), way.forwards.get(StageIndex(group)))
        if passed is not None and passed.tensor(name) == digest
    ]
    return tuple(dict.fromkeys(found))[:MAX_HOLDERS]


def check_answer(way: Way, call: Call, passed: Result) -> None:
    """Refuse tensors that are not those of the question, or that this stage cannot have.

    Raises:
        Malformed: the answer does not fit the question.
    """
    names, own = _names(way, call.group), dict(passed.tensors)
    is_last = call.group == way.num_groups - 1
    _need(all(own.get(name) == digest for name, digest in call.inputs), "other inputs")
    _need(is_last == (passed.loss is not None), "a loss of the last stage, and there alone")
    if call.direction in ("forward", "evaluate"):
        _need(is_last or names.y in own, "no output")
        return
    _need(tuple(sorted(own)) == names.all, "other tensors than a leaf has")
    # A replay does not compare what is given: only what neighbours had used may be called so.
    _need(bool(call.used) or not passed.given, "as given what nobody had used")
    _need(
        all(own.get(name) == digest for name, digest in call.used), "other tensors than were used"
    )


def _ask_up(way: Way, group: Group) -> Call:
    names, below = _names(way, group), StageIndex(group - 1)
    inputs = tuple(_input(way, below, names.x)) if names.x else ()
    if way.evaluates:
        return Call("evaluate", group, inputs)
    if group < way.num_groups - 1:
        return Call("forward", group, inputs)
    return Call("whole", group, inputs, tuple(_used(way, below, names.dx)))


def _ask_backward(way: Way, group: Group) -> Call:
    names = _names(way, group)
    below, above = StageIndex(group - 1), StageIndex(group + 1)
    x = _input(way, below, names.x) if names.x else ()
    used = (*_used(way, above, names.y), *_used(way, below, names.dx))
    return Call("backward", group, (*x, *_input(way, above, names.dy)), used)


def _input(way: Way, maker: Group, name: str) -> Iterator[tuple[str, Digest]]:
    """A tensor that a pass reads: of who made it, else as who counts had read it."""
    reader = StageIndex(maker + 1)
    for passed in (way.done.get(maker), way.forwards.get(maker), way.done.get(reader)):
        if passed is not None and (digest := passed.tensor(name)) is not None:
            yield name, digest
            return
    raise AssertionError("a way goes on from what is made")


def _used(way: Way, neighbour: Group, name: str) -> Iterator[tuple[str, Digest]]:
    """What a stage that counts has read of what is made now."""
    passed = way.done.get(neighbour)
    if name and passed is not None and (digest := passed.tensor(name)) is not None:
        yield name, digest


def _names(way: Way, group: Group) -> LeafNames:
    return leaf_names(group, way.num_groups, way.item)


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(f"the answer names {problem}")
