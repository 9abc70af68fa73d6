"""Tasks that belong together, the one error that ended them, and how they are ended for certain."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN = 1.0  # seconds


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a `TaskGroup` inside as it is, instead of the group.

    Callers group errors by who has to act (`contracts.terms.errors`); a group hides that.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What these return, in their order; the first error cancels the others and is raised."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended, however they do; their outcomes are for their owners.

    Once is not enough: a `TaskGroup` in which something has failed raises the failure, and a
    cancellation that comes meanwhile is lost (CPython 3.11), so that a loop that takes failures as
    they come would go on for ever. So it is while redis-py connects: it raises a failure instead.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
