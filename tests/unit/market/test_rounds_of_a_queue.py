"""A queue's round: what is due runs, and one use case that breaks or is slow starves no other."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from market.adapters.celery_tasks import Periodic, Runtime
from market.settings import Settings


class Counted(Runtime):
    """Counts runs instead of running; one name breaks."""

    def __init__(self) -> None:
        super().__init__(Settings.model_construct())
        self.ran: list[str] = []

    def run(self, name: str, task: Periodic) -> None:
        """Note it."""
        self.ran.append(name)
        if name == "breaks":
            raise KeyError(name)


async def _nothing(_: Runtime) -> None:
    pass


def due_every(**seconds: float) -> Mapping[str, Periodic]:
    return {name: Periodic(_nothing, timedelta(seconds=each)) for name, each in seconds.items()}


def test_run_due__one_breaks__others_run_and_it_is_told() -> None:
    runtime = Counted()

    with pytest.raises(ExceptionGroup, match="use cases that broke"):
        runtime.run_due(due_every(first=60, breaks=60, last=60))

    assert runtime.ran == ["first", "breaks", "last"]


def test_run_due__again_at_once__only_what_is_due_again() -> None:
    runtime, tasks = Counted(), due_every(often=0.5, seldom=60)

    runtime.run_due(tasks)
    runtime.run_due(tasks)

    assert runtime.ran == ["often", "seldom", "often"]
