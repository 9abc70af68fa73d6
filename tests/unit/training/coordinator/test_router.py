"""Who is asked for which pass, and what it means when nothing, or nothing useful, comes of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import UnitLeaf
from tests.support.history import make_digest
from training.coordinator.router import Router, View
from training.swarm.routing import Listed
from training.swarm.state import Copy, Place
from training.transport.calls import Failure, NextItem, Result, Task

STEP, JOB = StepNumber(3), JobId(bytes(32))
LOWER, UPPER = StageIndex(0), StageIndex(1)
A, B, C, D = (PeerId(name * 32) for name in (b"a", b"b", b"c", b"d"))
STAGES = {A: LOWER, B: LOWER, C: UPPER, D: UPPER}
RATE = 1_000_000  # units per 1e6 seconds: one a second


def result_of(task: Task, stage: StageIndex, made: str = "") -> Result:
    """What an honest peer makes of it; `made` tells its tensors from those of others."""
    backward = task.direction == "backward"
    y = make_digest("y", task.unit, *made)
    dx = make_digest("dx", task.unit, *made)
    if task.direction == "evaluate":
        dx = ZERO_DIGEST
    leaf = UnitLeaf(
        unit=task.unit,
        x=task.x.digest if task.x else make_digest("rows"),
        y=(task.y if backward else y) if stage == LOWER else ZERO_DIGEST,
        dy=task.dy.digest if task.dy else ZERO_DIGEST,
        dx=dx if stage == UPPER else ZERO_DIGEST,
        loss=5 + task.unit if stage == UPPER else None,
    )
    return Result(direction=task.direction, step=task.step, attempt=task.attempt, leaf=leaf)


class Routed:
    """A router of two stages, its peers, and a clock."""

    def __init__(self, units: int = 1, *, quota: int = 100, **how: Any) -> None:
        self.now = 0.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.router = Router(2, seed=1, attempts_from=1000, tell=self._tell, **how)
        workers = {
            stage: tuple(Listed(p, RATE, quota) for p, own in STAGES.items() if own == stage)
            for stage in (LOWER, UPPER)
        }
        places: tuple[Place, ...] = tuple(
            (stage, UnitId(unit)) for unit in range(units) for stage in (LOWER, UPPER)
        )
        self.view = View(STEP, missing=places, workers=workers, here=STAGES)
        self.router.look(self.view, self.now)

    def _tell(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    def look(self, **changed: Any) -> None:
        """Things have changed."""
        self.view = replace(self.view, **changed)
        self.router.look(self.view, self.now)

    def without(self, *gone: PeerId) -> None:
        """These are not here any more."""
        here = {peer: stage for peer, stage in STAGES.items() if peer not in gone}
        workers = {
            stage: tuple(each for each in own if each.peer in here)
            for stage, own in self.view.workers.items()
        }
        self.look(here=here, workers=workers)

    def wait(self, seconds: float) -> None:
        """Let time pass, with what is due in it."""
        until = self.now + seconds
        while (moment := self.router.next_moment()) is not None and moment <= until:
            self.now = max(self.now, moment)
            self.router.pass_time(self.now)
        self.now = until

    def out(self) -> dict[PeerId, list[Task]]:
        """Tasks by the peers that have them."""
        owed = {peer: [*self.router.owed(peer, ()).tasks] for peer in STAGES}
        return {peer: tasks for peer, tasks in owed.items() if tasks}

    def only(self) -> tuple[PeerId, Task]:
        """The one task that is out."""
        [(peer, [task])] = self.out().items()
        return peer, task

    def hand_in(self, peer: PeerId, *results: Result, **said: Any) -> None:
        """A peer says what came of tasks."""
        nothing: dict[str, Any] = {"failed": (), "holding": (), "is_first": False}
        self.router.take(peer, NextItem(job=JOB, results=results, **nothing | said), self.now)

    def make(self, made: str = "") -> PeerId:
        """The one task that is out is done; by whom."""
        peer, task = self.only()
        self.hand_in(peer, result_of(task, STAGES[peer], made))
        return peer

    def fail(self, code: str = "malformed", lacks: Digest = ZERO_DIGEST) -> PeerId:
        """The one task that is out fails; at whom."""
        peer, task = self.only()
        self.hand_in(peer, failed=(Failure(task=task.name, code=code, reason="", lacks=lacks),))
        return peer

    def finish(self) -> Mapping[Place, Copy]:
        """Do all that is out until nothing is; the copies of the only unit."""
        while self.out():
            self.make()
        copies = self.router.ended[UnitId(0)]
        assert copies is not None
        return dict(copies)


def attempts(tasks: Iterable[Task]) -> list[int]:
    return [task.attempt for task in tasks]


def test_router__one_unit__goes_up_and_down_and_back_to_whoever_keeps_its_graph() -> None:
    routed = Routed()

    first, upper = routed.make(), routed.make()
    peer, task = routed.only()

    assert (peer, task.direction, task.attempt) == (first, "backward", 1000)
    assert task.dy is not None and task.dy.holders == (upper,)
    copies = routed.finish()
    assert {place: copy.peer for place, copy in copies.items()} == {
        (LOWER, 0): first,
        (UPPER, 0): upper,
    }


def test_router__many_units__two_for_each_worker_and_nobody_above_its_quota() -> None:
    routed = Routed(units=100, quota=3)

    assert sorted(task.unit for tasks in routed.out().values() for task in tasks) == [*range(6)]
    assert {peer: len(tasks) for peer, tasks in routed.out().items()} == {A: 3, B: 3}


def test_owed__to_a_peer_that_holds_something__what_it_lacks_and_what_nobody_wants() -> None:
    routed = Routed()
    peer, task = routed.only()
    other = task.name.model_copy(update={"unit": UnitId(9)})

    owed = routed.router.owed(peer, (task.name, other))

    assert (owed.tasks, owed.drops) == ((), (other,))


def test_router__no_result_in_time__another_is_asked_and_what_comes_late_still_counts() -> None:
    routed = Routed()
    slow, task = routed.only()

    routed.wait(6.0)

    other, again = routed.only()
    assert other != slow and again.attempt > task.attempt
    assert routed.told[-1][1]["code"] == "deadline_exceeded"
    routed.hand_in(slow, result_of(task, LOWER))
    assert routed.only()[0] in (C, D)
    assert routed.router.owed(other, (again.name,)).drops == (again.name,)


def test_router__result_of_a_pass_that_its_peer_was_not_asked_for__changes_nothing() -> None:
    routed = Routed()
    peer, task = routed.only()

    routed.hand_in(B if peer == A else A, result_of(task, LOWER))

    assert routed.only() == (peer, task)


def test_router__peer_fails_or_is_gone__another_is_asked_at_once() -> None:
    routed = Routed()
    first = routed.fail()
    second, _ = routed.only()
    assert {first, second} == {A, B}

    routed.without(second)

    assert routed.told[-1][1]["code"] == "peer_unreachable"
    routed.wait(0.2)
    assert routed.only()[0] == first, "it is listed again"


def test_router__answer_that_does_not_fit__is_a_failure_of_its_peer() -> None:
    routed = Routed()
    peer, task = routed.only()

    routed.hand_in(peer, result_of(task, UPPER))

    assert routed.only()[0] != peer


def test_router__nobody_within_the_caps__they_are_lifted_after_a_while() -> None:
    routed = Routed(units=3, quota=1)
    assert attempts(routed.out()[A]) == [1000]
    routed.without(B)
    assert len(routed.out()[A]) == 1

    routed.wait(4.0)
    assert len(routed.out()[A]) == 1
    routed.wait(8.0)

    assert len(routed.out()[A]) > 1


@pytest.mark.parametrize("both", [True, False])
def test_router__tensor_that_two_peers_cannot_get__is_made_again(both: bool) -> None:
    routed = Routed()
    maker = routed.make()
    if not both:
        routed.without(D)
    y = routed.only()[1].x
    assert y is not None

    for _ in range(1 + both):
        routed.fail("not_found", y.digest)

    other, task = routed.only()
    assert (task.direction, task.attempt > 1000) == ("forward", True)
    assert other != maker, "who made it is asked last"
    assert routed.finish().keys() == {(LOWER, 0), (UPPER, 0)}


def test_router__tensor_of_a_copy_that_counts_is_nowhere__gives_up_after_some_tries() -> None:
    routed, dx = Routed(), make_digest("dx")
    counted = Copy(C, 1, x=make_digest("y"), dx=dx)
    routed.look(missing=((LOWER, UnitId(0)),), done={(UPPER, UnitId(0)): counted})
    routed.look(step=StepNumber(STEP + 1))

    for _ in range(8):
        if routed.out():
            routed.fail("not_found", dx)
        routed.wait(2.0)

    assert routed.router.ended == {UnitId(0): None}


def test_router__restarted__goes_on_from_what_peers_made_and_hold_and_deals_nothing_before() -> (
    None
):
    before = Routed(units=2)
    [(lower, task), (other, held)] = [(peer, tasks[0]) for peer, tasks in before.out().items()]
    made = result_of(task, LOWER)

    routed = Routed(units=2, awaited=STAGES, until=1.0)
    routed.hand_in(lower, made, is_first=True)
    routed.hand_in(other, is_first=True, holding=(held.name,))
    assert routed.out() == {}
    assert routed.router.owed(other, (held.name,)).drops == ()
    routed.wait(1.0)

    out = routed.out()
    assert out.pop(other) == [held]
    [[upper]] = out.values()
    assert upper.unit == task.unit and upper.x is not None and upper.x.holders == (lower,)


def test_router__validation_is_due__runs_before_units_and_its_loss_is_the_mean() -> None:
    routed = Routed(units=0)
    routed.look(validate_after=StepNumber(STEP - 1), num_groups=3, missing=((LOWER, UnitId(0)),))
    assert {task.direction for tasks in routed.out().values() for task in tasks} == {"evaluate"}
    for _ in range(30):
        for peer, tasks in routed.out().items():
            for task in tasks:
                routed.hand_in(peer, result_of(task, STAGES[peer]))

    assert routed.router.validated == (STEP - 1, 6)
