"""A queue's round: what is due runs, and one use case that breaks or is slow starves no other."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from celery.beat import ScheduleEntry
from pydantic import SecretStr

from contracts.terms.errors import ChainUnreachable
from market.settings import Settings
from market.worker.tasks import Periodic, Runtime, Sleeper, UseCase, make_app, periodic


class Counted(Runtime):
    """Connects to nothing; notes what ran. One name breaks."""

    def __init__(self, *, is_ours: bool = True) -> None:
        super().__init__(Settings.model_construct())
        self._is_ours, self.rests = is_ours, False
        self.ran: list[str] = []

    @asynccontextmanager
    async def turn(self, name: str | None) -> AsyncIterator[bool]:
        """See `Runtime.turn`."""
        yield self._is_ours

    async def is_at_rest(self) -> bool:
        """See `Runtime.is_at_rest`."""
        return self.rests

    def due_every(self, **seconds: float) -> Mapping[str, Periodic]:
        """A use case of each name."""

        def use_case(name: str) -> UseCase:
            async def run(_: Runtime) -> None:
                self.ran.append(name)
                if name == "breaks":
                    raise KeyError(name)
                if name == "refuses":
                    raise ChainUnreachable("no answer")

            return run

        return {n: Periodic(use_case(n), timedelta(seconds=each)) for n, each in seconds.items()}


def test_run_due__one_breaks__others_run_and_it_is_told() -> None:
    runtime = Counted()

    with pytest.raises(ExceptionGroup, match="use cases that broke") as broken:
        runtime.run_due(runtime.due_every(first=60, breaks=60, refuses=60, last=60))
    runtime.close()

    assert runtime.ran == ["first", "breaks", "refuses", "last"]
    assert len(broken.value.exceptions) == 1  # what is refused is found again


def test_run_due__again_at_once__only_what_is_due_again() -> None:
    runtime = Counted()
    tasks = runtime.due_every(often=0.5, seldom=60)

    runtime.run_due(tasks)
    runtime.run_due(tasks)
    runtime.close()

    assert runtime.ran == ["often", "seldom", "often"]


def test_run_due__no_job_is_open__what_serves_jobs_alone_waits_until_one_is() -> None:
    runtime = Counted()
    tasks = runtime.due_every(silent=0.5, fund=0.5)
    tasks = {**tasks, "fund": replace(tasks["fund"], of_jobs=True)}
    runtime.rests = True

    runtime.run_due(tasks)
    runtime.run_due(tasks)
    runtime.rests = False
    runtime.run_due(tasks)
    runtime.close()

    assert runtime.ran == ["silent", "fund", "silent", "silent", "fund"]


def test_run_due__somebody_else_writes_to_the_chain__nothing_runs() -> None:
    runtime = Counted(is_ours=False)

    runtime.run_due(runtime.due_every(first=60))
    runtime.close()

    assert not runtime.ran


def test_periodic__what_the_clock_decides__runs_before_clearing() -> None:
    order = list(periodic(Settings.model_construct(anchor_seconds=12)))

    assert max(map(order.index, ("lapse", "silent", "deadlines"))) < order.index("clear")


def test_beat__next_task_is_due_in_three_milliseconds__sleeps_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(Settings.model_construct(redis_url=SecretStr("redis://127.0.0.1:1/0")))
    beat = Sleeper(app, schedule_filename=str(tmp_path / "beat.db"))
    monkeypatch.setattr(ScheduleEntry, "is_due", lambda entry: (False, 0.003))

    slept = beat.tick()
    beat.close()

    assert app.conf.beat_scheduler == f"{Sleeper.__module__}:Sleeper"
    assert 0 < slept <= 0.003


def test_make_app__tasks_about_money__go_to_the_queue_of_the_chain() -> None:
    app = make_app(Settings.model_construct(redis_url=SecretStr("redis://127.0.0.1:1/0")))

    for name in ("grant", "claim", "release", "anchor"):
        assert name in app.tasks
        assert app.conf.task_routes[name] == {"queue": "chain"}
