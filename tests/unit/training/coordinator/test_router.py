"""Who is asked for which pass, and what it means when nothing, or nothing useful, comes of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from contracts.terms.work import leaf_names, tensor_name
from tests.support.history import make_digest, make_spec
from tests.support.local_jobs import of_local_steps
from tests.support.rounds import member
from tests.support.rounds import result as counting
from training.coordinator.router import IN_FLIGHT, LIFT_AFTER, Router
from training.coordinator.walks import Round
from training.strategies.every_step.rules import EveryStep
from training.strategies.local.rules import Local
from training.strategies.port import Group, Result, View
from training.telling import tell_nobody
from training.transport.calls import Failure, NextItem, Task, TaskName, TaskResult

ROUND, JOB = StepNumber(3), JobId(bytes(32))
LOWER, UPPER = StageIndex(0), StageIndex(1)
A, B, C, D, E = (PeerId(name * 32) for name in (b"a", b"b", b"c", b"d", b"e"))
GROUPS = {A: LOWER, B: LOWER, C: UPPER, D: UPPER}
RATE = 1_000_000  # items per 1e6 seconds: one a second


def result_of(task: Task, group: Group, made: str = "") -> TaskResult:
    """What an honest peer makes of it; `made` tells its tensors from those of others."""
    names = leaf_names(group, 2, task.item)
    wanted = (names.x, names.y) if task.direction in ("forward", "evaluate") else names.all
    own: dict[str, Digest] = {name: make_digest(name, *made) for name in wanted if name}
    own |= {each.name: each.digest for each in task.inputs}
    return TaskResult(
        direction=task.direction,
        round=task.round,
        item=task.item,
        tensors=tuple(sorted((own | dict(task.used)).items())),
        loss=5 + task.item if group == UPPER else None,
        given=False,
    )


def named(task: TaskName) -> TaskName:
    return TaskName(direction=task.direction, round=task.round, item=task.item)


class Routed:
    """A router of two groups, its peers, and a clock."""

    def __init__(self, items: int = 1, *, cap: int = 100, **how: Any) -> None:
        self.now = 0.0
        self.told: list[tuple[str, dict[str, object]]] = []
        self.router = Router(EveryStep(), 2, tell=self._tell, **how)
        members = {p: member(p, each, rate=RATE, applied=2) for p, each in GROUPS.items()}
        self.view = View(
            phase="work",
            newest=StepNumber(ROUND - 1),
            now=0,  # type: ignore[arg-type]
            ends=None,
            extended=False,
            issued=frozenset(map(ItemNumber, range(items))),
            counted={LOWER: {}, UPPER: {}},
            missing=frozenset(),
            claims={},
            delivered=frozenset(),
            peers=members,
            off=frozenset(),
            may_work=None,
            is_dealing=True,
        )
        self.round = Round(ROUND, self.view, here=GROUPS, caps=dict.fromkeys(GROUPS, cap))
        self.look()

    def _tell(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    def look(self, **changed: Any) -> None:
        """Things have changed."""
        self.round = replace(self.round, **changed)
        self.router.look(self.round, self.now)

    def without(self, *gone: PeerId) -> None:
        """These are not here any more."""
        self.look(here={peer: group for peer, group in GROUPS.items() if peer not in gone})

    def count(self) -> None:
        """What was done counts."""
        counted = {group: {**own} for group, own in self.view.counted.items()}
        for results in self.router.done.values():
            for result in results:
                counted[result.group][result.item] = result
        self.router.reported()
        self.view = replace(self.view, counted=counted)
        self.look(view=self.view)

    def count_above(self) -> Digest:
        """Let item 0 count in the upper group; returns the digest that the lower one needs."""
        names = leaf_names(UPPER, 2, ItemNumber(0))
        tensors = tuple(sorted((name, make_digest(name)) for name in names.all))
        counts = {ItemNumber(0): Result(UPPER, ItemNumber(0), C, tensors, 5)}
        self.view = replace(self.view, counted={LOWER: {}, UPPER: counts})
        self.look(view=self.view)
        return make_digest(names.dx)

    def wait(self, seconds: float) -> None:
        """Let time pass, with what is due in it."""
        until = self.now + seconds
        while (moment := self.router.next_moment()) is not None and moment <= until:
            self.now = max(self.now, moment)
            self.router.pass_time(self.now)
        self.now = until

    def out(self) -> dict[PeerId, list[Task]]:
        """Tasks by the peers that have them."""
        owed = {peer: [*self.router.owed(peer, ()).tasks] for peer in GROUPS}
        return {peer: tasks for peer, tasks in owed.items() if tasks}

    def only(self) -> tuple[PeerId, Task]:
        """The one task that is out."""
        [(peer, [task])] = self.out().items()
        return peer, task

    def hand_in(self, peer: PeerId, *results: TaskResult, **said: Any) -> None:
        """A peer says what came of tasks; then there is time to deal."""
        about: dict[str, Any] = {"failed": (), "holding": (), "is_first": False} | said
        self.router.take(peer, NextItem(job=JOB, results=results, **about), self.now)
        self.router.pass_time(self.now)

    def make(self, made: str = "") -> PeerId:
        """The one task that is out is done; by whom."""
        peer, task = self.only()
        self.hand_in(peer, result_of(task, GROUPS[peer], made))
        return peer

    def fail(self, code: str = "malformed", lacks: Digest = ZERO_DIGEST) -> PeerId:
        """The one task that is out fails; at whom."""
        peer, task = self.only()
        about = named(task).model_dump()
        self.hand_in(peer, failed=(Failure(**about, code=code, reason="", lacks=lacks),))
        return peer


def test_router__many_items__so_many_at_once_and_nobody_above_its_cap() -> None:
    routed = Routed(items=100, cap=3)

    assert sorted(task.item for tasks in routed.out().values() for task in tasks) == [*range(6)]
    assert {peer: len(tasks) for peer, tasks in routed.out().items()} == {A: 3, B: 3}


def test_owed__to_a_peer_that_holds_something__what_it_lacks_and_what_nobody_wants() -> None:
    routed = Routed()
    peer, task = routed.only()
    other = named(task).model_copy(update={"item": ItemNumber(9)})

    owed = routed.router.owed(peer, (named(task), other))

    assert (owed.tasks, owed.drops) == ((), (other,))


def test_router__no_result_in_time__is_dropped_and_another_is_asked_once_it_is_not_held() -> None:
    routed = Routed()
    slow, task = routed.only()

    routed.wait(6.0)

    assert routed.out() == {}
    assert routed.router.owed(slow, (named(task),)).drops == (named(task),)
    routed.hand_in(slow)
    other, again = routed.only()
    assert (other, named(again)) == (B if slow == A else A, named(task))
    assert not routed.router.off


def test_router__dropped_task_that_is_held_on__its_peer_is_silent() -> None:
    routed = Routed(items=2)
    (slow, [task]), (_, [other]) = routed.out().items()
    routed.hand_in(B, result_of(other, LOWER))

    routed.wait(6.0)
    routed.router.owed(slow, (named(task),))
    routed.hand_in(slow, holding=(named(task),))
    routed.wait(1.5)

    assert slow in routed.router.off
    routed.wait(0.1)
    assert routed.out()[B] == [task]


def test_router__peer_is_bound_to_the_item__is_off_and_another_is_asked() -> None:
    routed = Routed()

    bound = routed.fail("conflict")

    assert routed.router.off == {bound: {0}}
    other, _ = routed.only()
    assert other != bound


def test_router__nobody_else_could_do_it__is_waited_for() -> None:
    routed = Routed()
    peer, task = routed.only()
    routed.without(B if peer == A else A)

    routed.wait(60.0)

    assert routed.only() == (peer, task)


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
    routed.wait(0.2)

    assert routed.only()[0] == first, "it has rested"


def test_router__answer_that_does_not_fit__is_a_failure_of_its_peer() -> None:
    routed = Routed()
    peer, task = routed.only()

    routed.hand_in(peer, result_of(task, UPPER))

    assert routed.only()[0] != peer


def test_router__nobody_within_the_caps__they_are_lifted_after_a_while() -> None:
    routed = Routed(items=3, cap=1)
    routed.without(B)
    peer, task = A, routed.out()[A][0]
    assert len(routed.out()[A]) == 1
    routed.hand_in(peer, result_of(task, LOWER))
    for peer, tasks in routed.out().items():
        for each in tasks:
            routed.hand_in(peer, result_of(each, GROUPS[peer]))
    said = NextItem(
        job=JOB,
        is_first=False,
        results=(result_of(routed.out()[A][0], LOWER),),
        failed=(),
        holding=(),
    )
    routed.router.take(A, said, routed.now)
    routed.count()
    assert A not in routed.out()

    routed.wait(11.0)

    assert len(routed.out()[A]) >= 1


def test_router__tensor_that_cannot_be_had__is_made_again() -> None:
    routed = Routed()
    maker = routed.make()
    y = routed.only()[1].inputs[0].digest

    for _ in range(2):
        routed.fail("not_found", y)

    other, task = routed.only()
    assert task.direction == "forward"
    assert other != maker, "who made it rests"


def test_router__tensor_of_a_result_that_counts_is_nowhere__gives_up_after_some_tries() -> None:
    routed = Routed()
    dx = routed.count_above()
    assert routed.only()[1].direction == "backward"

    for _ in range(20):
        if routed.out():
            routed.fail("not_found", dx)
        routed.wait(2.0)

    assert routed.router.gone == {0}


def test_router__one_owner_says_again_and_again_it_lacks_a_tensor__another_is_asked() -> None:
    """It would tear the claims over the item."""
    routed = Routed()
    dx = routed.count_above()
    members = {**routed.view.peers, B: replace(routed.view.peers[B], owner=Address(A[:20]))}
    here = {**GROUPS, E: LOWER}
    members[E] = member(E, LOWER, rate=1, applied=2)  # slow, so asked last
    routed.view = replace(routed.view, peers=members)
    routed.look(view=routed.view, here=here, caps=dict.fromkeys(here, 100))

    for _ in range(20):
        if routed.out() and routed.only()[0] != E:
            routed.fail("not_found", dx)
        routed.wait(0.1)

    assert routed.router.gone == set()
    [task] = routed.router.owed(E, ()).tasks
    assert (task.item, task.direction) == (0, "backward")


def test_router__the_other_owner_cannot_make_the_pass_either__who_lacked_once_is_asked_again() -> (
    None
):
    """Else a peer that fails whatever it is given would keep the item for ever."""
    routed = Routed()
    routed.make()
    lacked = routed.fail("unavailable", routed.only()[1].inputs[0].digest)
    while routed.only()[0] != lacked:
        routed.fail()
        routed.wait(0.1)
        assert routed.now < 10

    assert routed.make() == lacked


def test_router__one_owner_lacks_a_tensor_and_the_other_fails_otherwise__it_is_given_up() -> None:
    routed = Routed()
    dx = routed.count_above()

    while not routed.router.gone:
        if routed.out():
            is_lacking = routed.only()[0] == A
            routed.fail(*("not_found", dx) if is_lacking else ())
        routed.wait(0.1)
        assert routed.now < 60


def test_router__the_other_owner_is_at_its_cap__who_lacked_once_is_asked_again_at_once() -> None:
    routed = Routed()
    routed.look(caps={A: 1, B: 1, C: 1, D: 0})
    routed.make()

    assert routed.fail("unavailable", routed.only()[1].inputs[0].digest) == C
    assert routed.make() == C


def test_router__peer_begins_a_session_without_what_counts__has_lost_it() -> None:
    routed = Routed(items=2)
    items = frozenset(map(ItemNumber, range(2)))
    routed.look(unclaimed={A: items}, may_lack=True)
    task = routed.out()[A][0]
    kept = result_of(task, LOWER).model_copy(update={"direction": "backward"})

    routed.hand_in(A, kept, is_first=True)

    assert routed.router.lacked == {A: items - {kept.item}}


def test_router__restarted__goes_on_from_what_peers_made_and_hold_and_deals_nothing_before() -> (
    None
):
    before = Routed(items=2)
    [(lower, task), (other, held)] = [(peer, tasks[0]) for peer, tasks in before.out().items()]

    routed = Routed(items=2, awaited=GROUPS, patience=1.0)
    routed.hand_in(lower, result_of(task, LOWER), is_first=True)
    routed.hand_in(other, is_first=True, holding=(named(held),))
    assert routed.out() == {}
    assert routed.router.owed(other, (named(held),)).drops == ()
    routed.wait(1.0)

    out = routed.out()
    assert out.pop(other) == [held]
    [[upper]] = out.values()
    assert upper.item == task.item and upper.inputs[0].holders == (lower,)


def test_expire__strategy_whose_items_stay__the_peer_keeps_its_task_however_long_it_takes() -> None:
    routed = Routed(waits=True)
    before = routed.only()

    routed.wait(3600)

    assert routed.only() == before
    assert not routed.router.off


def round_of_local_steps(
    num_items: int, counted: Mapping[ItemNumber, Result], *, cap: int = 4
) -> Round:
    """A round of two peers, A and B."""
    return Round(
        StepNumber(1),
        View(
            phase="work", newest=StepNumber(0), now=UnixMillis(0), ends=UnixMillis(60_000),
            extended=False, issued=frozenset(map(ItemNumber, range(num_items))),
            counted={LOWER: counted}, missing=frozenset(), claims={},
            delivered=frozenset(), peers={who: member(who, rate=RATE) for who in (A, B)},
            off=frozenset(), may_work=None, is_dealing=True, num_issued=num_items,
        ),
        here=dict.fromkeys((A, B), LOWER),
        caps=dict.fromkeys((A, B), cap),
    )  # fmt: skip


def local_router() -> Router:
    """Started again, of a job in whose rounds a peer does up to four items."""
    spec = make_spec(**of_local_steps(segments=4))
    return Router(Local(spec), 1, tell=tell_nobody, awaited=(A, B), patience=1.0, waits=True)


def two_who_have_worked_ahead(cap: int = 4) -> tuple[Router, Round]:
    """A is granted items 0, 2 and 3 of round 2, B item 1; now that begins."""
    router, first = local_router(), round_of_local_steps(8, {}, cap=cap)
    router.look(first, 0.0)
    for who in (A, B):
        hand_in_at_first(router, who)
    items = [*map(ItemNumber, range(4))]
    granted = [router.grant(who, items) for who in (A, B, A, A, A)]
    assert granted == [0, 1, 2, 3, None]
    assert first.view is not None
    view = replace(first.view, newest=StepNumber(1))
    return router, replace(first, number=StepNumber(2), view=view)


def applied(round: Round, *peers: PeerId) -> Round:
    """These have applied its seal, and are here."""
    assert round.view is not None
    members = {
        who: replace(each, applied=StepNumber(int(who in peers)))
        for who, each in round.view.peers.items()
    }
    view = replace(round.view, peers=members)
    return replace(round, view=view, here=dict.fromkeys(peers, LOWER))


def owed_to(router: Router, who: PeerId) -> list[int]:
    return [task.item for task in router.owed(who, ()).tasks]


def test_grant__round_begins__each_is_asked_for_all_that_it_was_granted() -> None:
    router, round = two_who_have_worked_ahead()

    router.look(applied(round, B), 1.0)
    assert owed_to(router, B) == [1, 4]  # 0, 2 and 3 wait for A
    router.look(applied(round, A, B), 1.1)

    assert owed_to(router, A) == [0, 2, 3]


@pytest.mark.parametrize("why", ["not issued", "above its cap", "gone", "may not work"])
def test_grant__not_all_of_it_can_be_asked_for__nothing_is(why: str) -> None:
    router, round = two_who_have_worked_ahead()
    view = round.view
    assert view is not None
    if why == "not issued":
        issued = frozenset(map(ItemNumber, (0, 1, 2, 4, 5)))
        round = replace(round, view=replace(view, issued=issued))
    elif why == "above its cap":
        round = replace(round, caps={A: 2, B: 4})
    elif why == "may not work":
        round = replace(round, view=replace(view, may_work=frozenset({B})), caps={B: 4})
    round = applied(round, B) if why == "gone" else applied(round, A, B)
    if why == "gone":
        assert round.view is not None
        away = replace(round.view.peers[A], lost_at=UnixMillis(1), applied=StepNumber(1))
        round = replace(round, view=replace(round.view, peers={**round.view.peers, A: away}))

    router.look(round, 1.0)

    assert 3 not in owed_to(router, A) and len(owed_to(router, B)) == IN_FLIGHT
    assert owed_to(router, B)[0] == 1 and (why != "gone" or 2 in owed_to(router, B))


def test_grant__it_is_here_and_never_applies_the_seal__others_are_dealt_what_is_left_at_last() -> (
    None
):
    router, round = two_who_have_worked_ahead()
    assert round.view is not None
    left = frozenset(map(ItemNumber, (0, 2, 3)))  # all of them granted to A
    round = applied(replace(round, view=replace(round.view, issued=left)), B)

    router.look(round, 1.0)
    assert not owed_to(router, B)
    router.pass_time(1.1 + LIFT_AFTER)

    assert owed_to(router, B)


def test_grant__all_take_long_to_apply_the_seal__nothing_is_taken_from_them_meanwhile() -> None:
    router, round = two_who_have_worked_ahead()
    router.look(applied(round), 1.0)
    router.pass_time(2 + LIFT_AFTER)
    router.look(applied(round, B), 3 + LIFT_AFTER)
    router.pass_time(4 + 2 * LIFT_AFTER)

    router.look(applied(round, A, B), 5 + 3 * LIFT_AFTER)

    assert owed_to(router, A) == [0, 2, 3]


def test_grant__who_begins_sessions_again_and_again__gets_no_more_and_others_still_get_some() -> (
    None
):
    router, items = local_router(), [*map(ItemNumber, range(8))]
    router.look(round_of_local_steps(8, {}, cap=2), 0.0)
    for who in (A, B):
        hand_in_at_first(router, who)

    for _ in range(9):
        router.grant(A, items)
        hand_in_at_first(router, A, at=0.5)

    assert router.grant(A, items) is None and router.grant(B, items) == 2


def hand_in_at_first(router: Router, who: PeerId, *items: int, at: float = 0.1) -> None:
    """What a peer says to have made before the start."""
    results = tuple(
        TaskResult(
            direction="whole", round=StepNumber(1), item=ItemNumber(item), given=False, loss=5,
            tensors=((tensor_name("rows", LOWER, ItemNumber(item)), make_digest(f"rows {item}")),),
        )
        for item in items
    )  # fmt: skip
    said = NextItem(job=JOB, is_first=True, results=results, failed=(), holding=())
    router.take(who, said, at)


@pytest.mark.parametrize(("cap", "already"), [(9, 0), (2, 1), (1, 1)])
def test_router__restarted__one_says_that_it_made_everything__counts_for_what_it_may_have_had(
    cap: int, already: int
) -> None:
    """Else who is back first would have the round, claim it and deliver nothing, for ever."""
    counted = {ItemNumber(5): counting(A, LOWER, 5)} if already else {}
    router = local_router()
    router.look(round_of_local_steps(6, counted, cap=cap), 0.0)
    hand_in_at_first(router, A, 0, 1, 2, 3, 4)
    hand_in_at_first(router, B, 4)

    router.pass_time(0.1)

    assert len(router.done[A]) == min(IN_FLIGHT, cap - already)
    assert [each.item for each in router.done[B]] == [4]


def test_router__restarted__peers_come_back_late__what_they_made_is_waited_for_from_the_first() -> (
    None
):
    router, round = local_router(), round_of_local_steps(4, {})
    router.look(replace(round, here={}), 0.0)
    router.pass_time(5.0)
    router.look(replace(round, here={A: LOWER}), 5.0)
    hand_in_at_first(router, A, at=5.0)
    router.pass_time(5.0)
    assert not router.owed(A, ()).tasks

    router.look(round, 5.9)
    hand_in_at_first(router, B, 0, at=5.9)
    router.pass_time(5.9)

    assert [each.item for each in router.done[B]] == [0]


def test_router__restarted__deals_only_once_what_peers_made_before_counts() -> None:
    """In a job of local steps a peer goes on from its last item, so none below it may be dealt."""
    counted = {ItemNumber(n): counting(who, LOWER, n) for n, who in enumerate((A, B))}
    router, round = local_router(), round_of_local_steps(8, counted)
    router.look(round, 0.0)
    for who, item in ((A, 4), (B, 3)):
        hand_in_at_first(router, who, item)

    router.pass_time(0.1)

    assert {who: [each.item for each in made] for who, made in router.done.items()} == {
        A: [4],
        B: [3],
    }
    assert not any(router.owed(who, ()).tasks for who in (A, B))
    for who, own in router.done.items():
        counted |= {each.item: counting(who, LOWER, each.item) for each in own}
    router.reported()
    assert round.view is not None
    router.look(replace(round, view=replace(round.view, counted={LOWER: counted})), 0.2)
    assert min(task.item for task in router.owed(A, ()).tasks) > 4
