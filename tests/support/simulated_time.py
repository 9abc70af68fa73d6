"""A test in which only waiting takes time: what expires in it does not depend on the machine.

A test with the mark `simulated_time` has an event loop whose clock stands still while anything
computes, in the loop or in a thread that it has asked, and jumps to the next timer when all that is
left is to wait. So a deadline passes because somebody is silent, never because the machine is slow,
and nobody waits for it: an hour is over at once. The loop is asyncio's own, with its public parts
replaced; sockets and processes have no place in it, they take time that it does not see.
"""

import asyncio
import functools
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from contracts.terms.moments import UnixMillis

T = TypeVar("T")

_LOOK_AGAIN = 0.05  # real seconds; a thread that ends wakes the loop, but one that was given up
_BOOTED = time.time() - time.monotonic()


def loop_seconds() -> float:
    """The clock of the event loop that runs."""
    return asyncio.get_running_loop().time()


def loop_clock() -> UnixMillis:
    """The moment by that clock: the system's, but in simulated time."""
    return UnixMillis(round(1000 * (_BOOTED + loop_seconds())))


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its clock moves only while nothing is left to do but wait for a timer."""

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._jobs: set[_Job] = set()
        super().__init__(_Selector(self))

    def time(self) -> float:
        """See `AbstractEventLoop.time`."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds

    @property
    def is_computing(self) -> bool:
        """Whether a thread works for us, or what it came to was not heard yet."""
        self._jobs = {job for job in self._jobs if not job.is_over}
        return bool(self._jobs)

    def run_in_executor(  # type: ignore[override]  # typeshed has it twice
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """See `AbstractEventLoop.run_in_executor`."""
        if executor is None:
            executor = self._usual
        noting = _Noting(executor)
        heard = super().run_in_executor(noting, func, *args)
        self._jobs.add(_Job(noting.job, heard))
        return heard

    @functools.cached_property
    def _usual(self) -> Executor:
        executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        self.set_default_executor(executor)  # so that it is shut down like one of asyncio's
        return executor


class _Noting(Executor):
    """Hands one job on, and knows it."""

    job: Future[Any]

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor.submit`."""
        self.job = self._executor.submit(fn, *args, **kwargs)
        return self.job


class _Job:
    """One call of a thread; `heard` may be given up before the thread is ready."""

    def __init__(self, done: Future[Any], heard: asyncio.Future[Any]) -> None:
        self._done, self._heard = done, heard

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self._done.done() and self._heard.done()


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer it lets the loop's clock jump there."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `BaseSelector.select`."""
        while self._loop.is_computing and (timeout is None or timeout > 0):
            if events := super().select(_LOOK_AGAIN):
                return events
        if timeout is None:
            return super().select()
        if not (events := super().select(0)) and timeout > 0:
            self._loop.pass_time(timeout)
        return events
