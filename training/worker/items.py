"""Items of the round in work: the passes that the coordinator asks of us, and what came of them.

Invariants
- What came of a task is handed in until that is answered, whoever coordinates by then; each session
  begins with all that we have of the round. The same task has the same result.
- A task that nobody wants any more ends, if its pass has not begun; else its result is handed in.
- Tensors that a pass took and made are on disk by digest, never in memory between two passes, but
  for what the strategy keeps. So whatever is lost from the gradient, or is too many in it, is
  computed again from there when a claim is to be made (`gather`).
- Nothing that came from others is computed with before it has its digest.
- What is computed ahead of its round counts in it if the first tasks of that round begin with all
  of it, and is dropped otherwise, or when the session ends before.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeVar

from contracts.terms import errors
from contracts.terms.digest import formed_digest
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber
from contracts.terms.items import MAX_ITEMS, ItemNumber
from contracts.terms.work import Leaf
from training.backoff import Backoff
from training.tasks import all_of
from training.telling import Rarely
from training.transport.calls import (
    NEXT_ITEM,
    Failure,
    Input,
    ItemTasks,
    NextItem,
    Task,
    TaskName,
    TaskResult,
)
from training.worker.peers import NEXT
from training.worker.station import Station
from training.worker.store import Kind
from training.worker.turns import Rank

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds
KEPT_SHARE = 20  # items are kept again after so many times what that took
MOST_TOLD = 256  # characters of a reason

T = TypeVar("T")


@dataclass(frozen=True)
class _Pass:
    """A pass of this round as it was made."""

    inputs: Mapping[str, Digest]
    result: TaskResult
    leaf: Leaf | None  # at the end of an item


class PassSource:
    """Satisfies `strategies.port.Source` with what is on our disk, and keeps what a pass makes."""

    def __init__(self, station: Station, name: TaskName, inputs: Mapping[str, Digest]) -> None:
        self._at, self._name, self._inputs = station, name, inputs
        self.made: dict[str, Digest] = {}

    def digest(self, name: str) -> Digest:
        """See `Source.digest`; raises Malformed."""
        if (found := self._inputs.get(name)) is None:
            raise errors.Malformed(f"a task without {name}")
        return found

    async def get(self, name: str) -> bytes:
        """See `Source.get`; rows come from the corpus, all else is on our disk."""
        if name.startswith(("rows/", "validation/")):
            return await self._at.engine.run(lambda: self._at.rows(name))
        return await self._at.read(self.digest(name), "boundary")

    def put(self, name: str, data: bytes) -> Digest:
        """See `Source.put`."""
        digest = formed_digest(data)
        self._at.store.put(_kind_of(self._name), StepNumber(self._name.round), digest, data)
        self.made[name] = digest
        return digest


def _kind_of(name: TaskName) -> Kind:
    return "validation" if name.direction == "evaluate" else "tensors"


class Items:
    """Of one lease."""

    def __init__(self, station: Station) -> None:
        self._at = station
        self._tell_rarely = Rarely(station.tell)
        self._held: dict[TaskName, asyncio.Task[None]] = {}
        self._begun: set[TaskName] = set()  # of them
        self._results: dict[TaskName, TaskResult] = {}  # not handed in yet
        self._failures: dict[TaskName, Failure] = {}
        self._news = asyncio.Event()
        self._passes: dict[TaskName, _Pass] = {}  # of this round
        self._done: dict[ItemNumber, _Pass] = {}
        self._added: list[ItemNumber] = []  # to the gradient, as far as we know
        self._keep_from = 0.0  # moment of the loop
        self._is_free = asyncio.Event()  # our work of the round is claimed
        self._granted: ItemNumber | None = None  # of the next round
        self._ahead: dict[ItemNumber, Leaf] = {}  # done of it, and not asked for yet
        self._working_ahead = asyncio.Lock()
        self.worked_in = StepNumber(0)
        """The newest round in which a pass was begun."""

    def begin_round(self) -> None:
        """Forget all that belongs to a round that is over; the strategy does so too."""
        self._passes, self._done, self._added = {}, {}, []
        self._ahead = {leaf.item: leaf for leaf in self._at.ahead}
        self._is_free.clear()
        for name in [each for each in self._held if self._is_over(each)]:
            self._held.pop(name).cancel()
        self._results = {n: each for n, each in self._results.items() if not self._is_over(n)}
        self._failures = {n: each for n, each in self._failures.items() if not self._is_over(n)}

    async def resume(self) -> None:
        """Go on from the items of the round in work that a process before us has kept."""
        at = self._at
        leaves = await at.engine.run(partial(at.strategy.resume, self._kept))
        if not at.book.bound.items.isdisjoint(leaf.item for leaf in leaves):
            return await self._empty()  # they were claimed since
        self._take_in(leaves)
        if leaves:
            at.tell("items_resumed", step=at.round, stage=at.group, items=len(leaves))

    def _take_in(self, leaves: Iterable[Leaf]) -> None:
        """Take note of whole items of this round that are in the gradient already."""
        for leaf in leaves:
            result = TaskResult(
                direction="whole",
                round=self._at.round,
                item=leaf.item,
                tensors=leaf.tensors,
                loss=leaf.numbers[0],
                given=leaf.given,
            )
            made = _Pass(dict(leaf.tensors), result, leaf)
            self._passes[_name(result)] = self._done[leaf.item] = made
            self._added.append(leaf.item)
            self.worked_in = self._at.round

    @property
    def _kept(self) -> Path:
        return self._at.folder_of(self._at.group) / "round" / "kept"

    async def _keep(self) -> None:
        """Keep what would be computed again after a restart, where that takes little beside it."""
        at, clock = self._at, asyncio.get_running_loop().time
        began = clock()
        if began < self._keep_from:
            return
        try:
            await at.engine.run(partial(at.strategy.keep, self._kept))
        except errors.Unavailable as error:
            self._tell_rarely("items_not_kept", step=at.round, reason=error.message)
        took, commit = clock() - began, at.book.record.spec.rules.commit_timeout / 1000
        # A claim that is asked for meanwhile must not come too late.
        self._keep_from = inf if took > commit / 2 else clock() + KEPT_SHARE * took

    def _is_over(self, name: TaskName) -> bool:
        return name.direction != "evaluate" and name.round < self._at.round

    # -------------------------------------------------------------------------------- the session

    async def talk(self) -> None:
        """Hand in and ask, in one session with the coordinator, until cancelled."""
        works_ahead = self._at.book.record.spec.batch.works_ahead
        if works_ahead:
            await self._at.engine.at(Rank.STEP, self._drop_ahead)
        self._results = self._unclaimed() | self._results
        is_first, backoff = True, Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while is_first and self._results:
            is_first = not await self._hand_in(backoff, is_first=True)
        loops = [self._hand_in_news(), self._ask_for_more(is_first=is_first)]
        if works_ahead:
            loops.append(self._work_ahead())
        await asyncio.gather(*loops)

    async def _hand_in_news(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            self._news.clear()
            if not (self._results or self._failures):
                await self._news.wait()
                continue  # perhaps they were handed in already, and a call without any waits long
            await self._hand_in(backoff, is_first=False)

    async def _hand_in(self, backoff: Backoff, *, is_first: bool) -> bool:
        """Whether all that there is was answered."""
        results, failures = {**self._results}, {**self._failures}
        if not await self._ask(backoff, results, failures, is_first=is_first):
            return False
        self._results = _without(self._results, results)
        self._failures = _without(self._failures, failures)
        return True

    def _unclaimed(self) -> dict[TaskName, TaskResult]:
        bound = self._at.book.bound.items
        return {n: each.result for n, each in self._passes.items() if n.item not in bound}

    async def _ask_for_more(self, *, is_first: bool) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            is_first &= not await self._ask(backoff, {}, {}, is_first=is_first)

    async def _work_ahead(self) -> None:
        """Do items of the next round while our claim of this one is exchanged."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            await self._is_free.wait()
            self._granted = None
            await self._ask(backoff, {}, {}, is_first=False, is_free=True)
            async with self._working_ahead:
                if self._granted is not None and self._is_free.is_set():
                    await self._make_ahead(self._granted)

    async def _make_ahead(self, item: ItemNumber) -> None:
        at, round = self._at, StepNumber(self._at.round + 1)
        name = TaskName(direction="whole", round=round, item=item)
        try:
            leaf = await at.strategy.run(item, "whole", PassSource(at, name, {}))
        except errors.TallystickError as error:
            self._tell_rarely("not_ahead", step=round, item=item, reason=error.message)
            self._is_free.clear()
            await at.engine.at(Rank.STEP, self._empty)
        except asyncio.CancelledError:
            self._ahead = {}  # half of this one was among them
            raise
        else:
            assert leaf is not None  # at the end of an item
            self._ahead[item] = leaf

    async def _drop_ahead(self) -> None:
        """Drop what an ended session has left, of which a piece may have been computed since."""
        if not self._added and self._at.seat is not None:
            await self._empty()

    async def _settle_ahead(self) -> None:
        """Count in the round what was computed ahead of it, if what is asked for begins so."""
        async with self._working_ahead:
            if not self._ahead:
                return
            ahead, at = self._ahead, self._at
            asked = sorted(name.item for name in self._held if name.round == at.round)
            if is_whole := asked[: len(ahead)] == sorted(ahead):
                self._ahead = {}
                self._take_in(ahead.values())
            else:
                await at.engine.at(Rank.STEP, self._empty)
            about = {"step": at.round, "stage": at.group}
            at.tell("ahead", **about, items=len(ahead), counts=is_whole)
            for leaf in ahead.values() if is_whole else ():
                at.tell("item_done", **about, item=leaf.item, loss=leaf.numbers[0])

    async def _ask(
        self,
        backoff: Backoff,
        results: Mapping[TaskName, TaskResult],
        failures: Mapping[TaskName, Failure],
        *,
        is_first: bool,
        is_free: bool = False,
    ) -> bool:
        """Whether there was an answer, which is taken; else some time has passed."""
        peers = self._at.peers
        request = NextItem(
            job=peers.job,
            is_first=is_first,
            is_free=is_free,
            results=tuple(results.values()),
            failed=tuple(failures.values()),
            holding=tuple(self._held.keys() | self._results.keys() | self._failures.keys()),
        )
        try:
            answer, _ = await peers.ask_coordinator(NEXT_ITEM, request, deadline=NEXT)
        except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
            about = {"step": self._at.round, "code": error.code, "reason": error.message}
            self._tell_rarely("no_tasks", **about)
            await asyncio.sleep(backoff.next())
            return False
        self._take(answer)
        backoff.begin()
        return True

    def _take(self, answer: ItemTasks) -> None:
        for name in answer.drops:
            if name not in self._begun and (held := self._held.pop(name, None)) is not None:
                held.cancel()
        if answer.ahead is not None:
            self._granted = ItemNumber(answer.ahead)
        for task in answer.tasks:
            name = _name(task)
            is_new = not (name in self._held or name in self._results or name in self._failures)
            if is_new and len(self._held) < MAX_ITEMS:
                self._held[name] = asyncio.create_task(self._make(name, task))

    async def _make(self, name: TaskName, task: Task) -> None:
        try:
            await self._compute(name, task)
        except errors.TallystickError as error:
            if not self._is_over(name):
                self._failures[name] = _failure(name, error)
        finally:
            if self._held.get(name) is asyncio.current_task():
                del self._held[name]
        self._news.set()

    async def close(self) -> None:
        """Give up what we hold."""
        held = [*self._held.values()]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    # ------------------------------------------------------------------------------------ passes

    async def _compute(self, name: TaskName, task: Task) -> None:
        """Have the result of a task.

        Raises:
            Unavailable: we have not come to that round; an input is not reached; the device failed.
            NotFound: nobody has an input any more. Conflict: that round is over.
            NotFinite, WrongBytes, Malformed, Refused: see `Strategy.run`; data name the `digest`.
        """
        self._need_state(name)
        await all_of(self._have(name, each) for each in task.inputs)
        if task.direction == "whole":
            await self._settle_ahead()
        rank = Rank.BACKWARD if task.direction == "backward" else Rank.FORWARD
        await self._at.engine.at(rank, lambda: self._in_turn(name, task))

    async def _in_turn(self, name: TaskName, task: Task) -> None:
        self._results[name] = await self._pass(name, task)
        if name.direction == "whole":
            self._news.set()  # it is handed in while it is kept
            await self._keep()

    async def _have(self, name: TaskName, wanted: Input) -> None:
        store, digest, round = self._at.store, wanted.digest, StepNumber(name.round)
        if not await self._at.holds(digest, "boundary"):
            data = await self._at.peers.fetch(digest, "boundary", wanted.holders)
        elif store.newest_round(digest) < round:  # whoever lies may send a tensor twice
            data = await self._at.read(digest, "boundary")
        else:
            return
        await self._at.engine.run_io(lambda: store.put(_kind_of(name), round, digest, data))

    async def _pass(self, name: TaskName, task: Task) -> TaskResult:
        self._need_state(name)
        inputs = {each.name: each.digest for each in task.inputs}
        known = self._passes.get(name)
        if known is not None and inputs.items() <= known.inputs.items():
            return known.result
        self._begun.add(name)
        try:
            return await self._computed(name, task, inputs)
        finally:
            self._begun.discard(name)

    async def _computed(
        self, name: TaskName, task: Task, inputs: Mapping[str, Digest]
    ) -> TaskResult:
        round, at = StepNumber(task.round), self._at
        is_evaluation = task.direction == "evaluate"
        if not is_evaluation:
            if task.item in at.book.bound.items:
                raise errors.Conflict(f"item {task.item} is claimed, as computed before")
            self.worked_in = round
            if self._done.pop(task.item, None) is not None:  # from other tensors
                await self._empty()
            before = self._passes.get(name.model_copy(update={"direction": "forward"}))
            inputs = {**(before.inputs if before else {}), **inputs}
        source = PassSource(at, name, inputs)
        leaf = await at.strategy.run(task.item, task.direction, source)
        tensors = {**inputs, **source.made}
        if leaf is not None and not is_evaluation:
            tensors = dict(leaf.tensors)
        used = {each: digest for each, digest in task.used if tensors.get(each, digest) != digest}
        result = TaskResult(
            direction=task.direction,
            round=task.round,
            item=task.item,
            tensors=tuple(sorted((tensors | used).items())),
            loss=leaf.numbers[0] if leaf and leaf.numbers else None,
            given=bool(used),
        )
        if is_evaluation:
            return result
        if used:  # what we computed is not what a peer that is gone had sent
            at.tell("redo_differs", step=round, stage=at.group, item=task.item)
        if leaf is not None:
            leaf = leaf.model_copy(update={"tensors": result.tensors, "given": result.given})
        self._passes[name] = made = _Pass(inputs, result, leaf)
        if leaf is not None:
            self._done[task.item] = made
            self._added.append(task.item)
        event = "item_forward" if leaf is None else "item_done"
        at.tell(event, step=round, stage=at.group, item=task.item, loss=result.loss)
        return result

    async def _empty(self) -> None:
        """Begin the gradient again: what is in it is computed anew, from disk, for a claim."""
        at, self._added, self._ahead = self._at, [], {}
        state, round = at.state, at.round
        await at.engine.run(lambda: at.strategy.start(state, round))

    def _need_state(self, name: TaskName) -> None:
        """Refuse a pass on another state, or for nothing; raises Unavailable, Conflict."""
        if name.direction != "evaluate":
            self._at.need_round(name.round)
            if not self._at.book.record.cursor.is_free(name.item):
                raise errors.Conflict(f"no seal could cover item {name.item} any more, or yet")
            return
        applied = self._at.applied
        if name.round > applied:
            raise errors.Unavailable(f"the state after round {name.round} is not here yet")
        if name.round < max(1, self._at.book.updated(applied)):  # validation follows a seal
            raise errors.Conflict(f"the state after round {name.round} is gone, this is {applied}")

    # ------------------------------------------------------------------------------- the gradient

    def leaf(self, item: ItemNumber) -> Leaf | None:
        """What we say of an item of this round; None: it is not done."""
        done = self._done.get(item)
        return done.leaf if done else None

    async def gather(self, items: Iterable[ItemNumber]) -> tuple[ItemNumber, ...]:
        """Have exactly these items in the gradient, in ascending order where that decides bytes.

        Returns:
            Items that cannot be in it, as their tensors are lost; then it is not of these items.
        """
        wanted = sorted(items)
        is_alone = len(self._at.layout.groups) == 1
        if (self._added if is_alone else sorted(self._added)) == wanted:
            return ()
        return await self.compute_again(wanted)

    async def compute_again(self, items: Iterable[ItemNumber]) -> tuple[ItemNumber, ...]:
        """Fill the gradient with these items from tensors on disk; returns as `gather`."""
        wanted = sorted(items)
        self._at.tell("gradient_dropped", step=self._at.round, items=len(wanted))
        await self._empty()
        leaves = filter(None, map(self.leaf, wanted))
        ahead = frozenset(leaf.item for leaf in leaves if leaf.base_round < self._at.round)
        if ahead:
            self._at.strategy.start_ahead(ahead)
        for item in wanted:
            done = self._done[item]
            source = PassSource(self._at, done.result, done.inputs)
            try:
                leaf = await self._at.strategy.run(item, done.result.direction, source)
                if leaf and done.leaf and leaf.numbers != done.leaf.numbers:
                    await self._empty()  # it was the next step after items that are not claimed
                    raise errors.Conflict(f"item {item} counts as it came after others")
            except (errors.Refused, errors.Unavailable, errors.Misbehaved) as error:
                self._at.tell("item_lost", step=self._at.round, item=item, reason=error.message)
                self.forget(item)
                return (item,)
            self._added.append(item)
        return ()

    def forget(self, item: ItemNumber) -> None:
        """A done item cannot be claimed any more."""
        self._done.pop(item, None)
        self._passes = {name: each for name, each in self._passes.items() if name.item != item}

    async def claimed(self) -> None:
        """A claim is stored: the next one of this round starts empty."""
        await self._empty()
        self._is_free.set()


def _without(all_of_them: dict[TaskName, T], handed_in: Mapping[TaskName, T]) -> dict[TaskName, T]:
    return {n: each for n, each in all_of_them.items() if handed_in.get(n) is not each}


def _name(about: TaskName) -> TaskName:
    return TaskName(direction=about.direction, round=about.round, item=about.item)


def _failure(name: TaskName, error: errors.TallystickError) -> Failure:
    lacks = error.data.get("digest")
    return Failure(
        direction=name.direction,
        round=name.round,
        item=name.item,
        code=error.code,
        reason=error.message[:MOST_TOLD],
        lacks=Digest(bytes.fromhex(lacks)) if isinstance(lacks, str) else ZERO_DIGEST,
    )
