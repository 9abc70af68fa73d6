"""The one thread that computes, and whose turn it is; also what cannot be broken off half-way.

Invariants: one piece of work at a time; a piece that has its turn goes on to its end even if
whoever asked for it is gone, because it changes what we are; one that still waits for its turn ends
with its asker. Megabytes are read, written and hashed `beside`, so that calls are heard meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from contracts.terms.errors import InvariantBroken, Unavailable
from training.telling import Span
from training.worker.turns import Rank, Turn

T = TypeVar("T")

_HANDS = 4  # threads for what is done beside the computing

_SPAN: ContextVar[Span | None] = ContextVar("span", default=None)
"""Of the turn that the running task has."""


class Engine:
    """For one event loop; `close` it."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._hands = ThreadPoolExecutor(_HANDS, thread_name_prefix="disk")
        self._started: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.broken: asyncio.Future[InvariantBroken] = asyncio.get_running_loop().create_future()
        """Set when we are in a state that must not be: the process has to end."""

    async def run(self, function: Callable[[], T]) -> T:
        """Compute in the thread; runs to its end even if nobody waits any more.

        Raises:
            Unavailable: this process is stopping. Whatever `function` raises.
        """
        self._need_open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def compute(self, function: Callable[[], T]) -> T:
        """Compute in the turn that the caller has, or else in one of its own.

        Who has none works for a later round: all else goes first. Raises as `run`.
        """
        if _SPAN.get() is None:
            return await self.at(Rank.AUDIT, lambda: self.run(function))
        return await self.run(function)

    async def run_io(self, function: Callable[[], T]) -> T:
        """Run blocking file work in a second thread; like `run`, it is never cancelled.

        Raises:
            Unavailable: this process is stopping. Whatever `function` raises.
        """
        self._need_open()
        return await asyncio.get_running_loop().run_in_executor(self._hands, function)

    async def at(self, rank: Rank, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` when it is its turn.

        Raises:
            Unavailable: this process is stopping. Whatever `work` raises.
        """
        self._need_open()
        span = Span()
        await self._turn.acquire(rank)
        span.begin()
        if self._closed:
            self._turn.release()
            self._need_open()
        task = asyncio.create_task(self._whole(work, span))
        self._started.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        # Here and not in the task: one that is cancelled before its first step runs no `finally`.
        self._started.discard(task)
        self._turn.release()

    async def _whole(self, work: Callable[[], Awaitable[T]], span: Span) -> T:
        _SPAN.set(span)
        try:
            return await work()
        except InvariantBroken as error:
            if not self.broken.done():
                self.broken.set_result(error)
            raise

    def _need_open(self) -> None:
        if self._closed:
            raise Unavailable("this process is stopping")

    def take_timings(self) -> dict[str, int]:
        """Fields of an event: time since the last call, and the queue; empty outside of a turn."""
        span = _SPAN.get()
        return {} if span is None else {**span.take_timings(), "queue": self._turn.waiting}

    async def close(self) -> None:
        """Stop; what the thread computes at this moment is waited for."""
        self._closed = True
        for task in self._started:
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)
        for threads in (self._hands, self._thread):
            threads.shutdown(wait=True)
