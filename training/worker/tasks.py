"""The passes that the coordinator asks of us: what we hold, and what has come of it.

Invariants: what came of a task is handed in until that is answered, whoever coordinates by then;
each session begins with all that we have of the step. A task that nobody wants any more ends, if
its turn has not come. All that we hold fetch their tensors at once; `turns` says which computes.
"""

import asyncio
from collections.abc import Mapping

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import UnitLeaf
from training.backoff import Backoff
from training.stages.torch_free import num_groups
from training.telling import Rarely
from training.transport.calls import Failure, ItemTasks, NextItem, Result, Task, TaskName
from training.worker.station import Station
from training.worker.units import Units

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds
MOST_TOLD = 256  # characters of a reason


class Tasks:
    """Of one lease."""

    def __init__(self, station: Station, units: Units) -> None:
        self._at, self._units = station, units
        self._tell_rarely = Rarely(station.tell)
        self._held: dict[TaskName, asyncio.Task[None]] = {}
        self._results: dict[TaskName, Result] = {}  # not handed in yet
        self._failures: dict[TaskName, Failure] = {}
        self._news = asyncio.Event()

    async def talk(self) -> None:
        """Hand in and ask, in one session with the coordinator, until cancelled."""
        await asyncio.gather(self._hand_in(), self._ask_for_more())

    async def _hand_in(self) -> None:
        backoff, is_first = Backoff(FIRST_PAUSE, LONGEST_PAUSE), True
        self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            if is_first and self._at.seat is not None:
                self._results = {each.name: each for each in self._units.results()} | self._results
            results, failures = {**self._results}, {**self._failures}
            if await self._ask(backoff, results, failures, is_first=is_first):
                is_first = False
                for name in results:
                    del self._results[name]
                for name in failures:
                    del self._failures[name]
            else:
                self._news.set()

    async def _ask_for_more(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            await self._ask(backoff, {}, {}, is_first=False)

    async def _ask(
        self,
        backoff: Backoff,
        results: Mapping[TaskName, Result],
        failures: Mapping[TaskName, Failure],
        *,
        is_first: bool,
    ) -> bool:
        """Whether there was an answer, which is taken; else some time has passed."""
        request = NextItem(
            job=self._at.book.record.job,
            is_first=is_first,
            results=tuple(results.values()),
            failed=tuple(failures.values()),
            holding=tuple(self._held.keys() | self._results.keys() | self._failures.keys()),
        )
        try:
            self._take(await self._at.peers.next_tasks(request))
        except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
            about = {"step": self._at.step, "code": error.code, "reason": error.message}
            self._tell_rarely("no_tasks", **about)
            await asyncio.sleep(backoff.next())
            return False
        backoff.begin()
        return True

    def _take(self, answer: ItemTasks) -> None:
        for name in answer.drops:
            if (held := self._held.pop(name, None)) is not None:
                held.cancel()
        for task in answer.tasks:
            name = task.name
            if not (name in self._held or name in self._results or name in self._failures):
                self._held[name] = asyncio.create_task(self._make(task))

    async def _make(self, task: Task) -> None:
        name = task.name
        try:
            leaf = await self._pass(task)
            self._results[name] = Result(
                direction=task.direction, step=task.step, attempt=task.attempt, leaf=leaf
            )
        except errors.TallystickError as error:
            self._failures[name] = _failure(name, error)
        finally:
            if self._held.get(name) is asyncio.current_task():
                del self._held[name]
        self._news.set()

    async def _pass(self, task: Task) -> UnitLeaf:
        at, batch = self._at, self._at.batch
        if (task.x is None) != at.compute.is_first:
            raise errors.Malformed("x comes with every pass but the first stage's")
        is_evaluation = task.direction == "evaluate"
        bound = num_groups(batch.rows_per_unit) if is_evaluation else batch.units_per_step
        if task.unit >= bound:
            raise errors.Conflict(f"there are {bound} of these, not one numbered {task.unit}")
        if is_evaluation:
            return await self._units.evaluate(task)
        if task.direction == "forward":
            return await self._units.forward(task)
        if task.dy is None:
            raise errors.Malformed("dy comes with every backward pass")
        return await self._units.backward(task)

    async def close(self) -> None:
        """Give up what we hold."""
        held = [*self._held.values()]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


def _failure(name: TaskName, error: errors.TallystickError) -> Failure:
    lacks = error.data.get("digest")
    return Failure(
        task=name,
        code=error.code,
        reason=error.message[:MOST_TOLD],
        lacks=Digest(bytes.fromhex(lacks)) if isinstance(lacks, str) else ZERO_DIGEST,
    )
