"""Tasks that belong together, and the one error that ended them."""

from collections.abc import Iterator
from contextlib import contextmanager


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
