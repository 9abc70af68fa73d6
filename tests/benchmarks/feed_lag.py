"""How late do people see what happens in a job, and what does it cost to show it to them?

`python -m tests.benchmarks.feed_lag [--steps N] [--stages N] [--peers N] [--units N] [--rows N]
[--watchers N] [--checking off]` prints a table and one line of JSON with machine, versions and
commit. A whole market runs, every service; as many providers as stages x peers train a job while
watchers follow it by the SDK (`client.job_events`, which `watch` folds), each over a connection of
its own, one `tallystick job watch`, and its page in a headless Chromium.

Lag is the reader's wall clock when it has an event, less the event's own time `at`: of a step
report the coordinator's when the step was sealed, of all others the market's when it stored what
happened. Clocks are those of one machine. Only what happened while somebody watched counts; a
validation loss comes later than the step that it is of, so the second report of a step is left out.
Of `job watch` and the page it is when each first shows a step, less the earliest `at` of any event
of that step; a step that is never shown fails the run.

CPU seconds are from /proc, from the job's posting to its last seal: of the API, whose streams are
the feed, as a part of those of coordinator, trainers and peers. The API takes the job's messages
too, which it would without any watcher; so its time is beside that of a run with `--watchers 0`.
Postgres, Redis, the chain and the market's workers are in neither. It takes 45 minutes on two
cores, `--rows 8` ten.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from asyncio import TaskGroup
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.chain.deploy import DEFAULT_PARAMETERS
from contracts.terms.ids import JobId
from tallystick.sdk.watch import DONE_STATES
from tests.benchmarks.feed_lag_readers import (
    Lags,
    Shown,
    step_lags,
    watch_by_command,
    watch_by_page,
    watch_job,
)
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.stage_throughput import commit
from tests.support.stack import Stack, stack

API = "market.api"
JOB_MODULES = ("tallystick.coordinator", "tallystick.trainer", "tallystick.provider.peer")
LOOK_SECONDS = 2.0
LOOKS = 15  # at /proc, for each at the job: asking is work for the API
ASK = "1000"  # tokens per PFLOP
PATIENCE = 4 * 3600.0
AIM_SECONDS, AIM_PART = 1.0, 0.03


@dataclass
class Used:
    """CPU seconds by process, as last seen: a process that has ended stays."""

    seconds: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def find(self, market: Stack) -> None:
        """Look for processes that are new, and read of all; takes a while on a busy machine."""
        for module in (API, *JOB_MODULES):
            for one in market.find(module):
                self.seconds[module].setdefault(one.pid, 0.0)
        self.look()

    def look(self) -> None:
        """Read of those that are known."""
        for pids in self.seconds.values():
            for pid in pids:
                pids[pid] = max(pids[pid], cpu_seconds(pid))

    def total(self, *modules: str) -> float:
        """Of all processes that ran these."""
        return sum(sum(self.seconds[module].values()) for module in modules)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one job and watch it."""
    with tempfile.TemporaryDirectory(prefix="tallystick-feed-") as folder:
        async with AsyncExitStack() as started:
            market = await started.enter_async_context(
                stack(Path(folder), forked=True, **DEFAULT_PARAMETERS)
            )
            for number in range(options.stages * options.peers):
                market.start_provider(f"p{number}", ask=ASK)
            submitted = await market.submit(
                name="feed lag",
                steps=options.steps,
                stages=options.stages,
                recipe=options.recipe,
                **({"model": {"num_layers": options.stages}} if options.recipe == "micro" else {}),
                peers_per_stage=options.peers,
                units_per_step=options.units * options.peers,
                rows_per_unit=options.rows,
                checking=options.checking,
                budget=max(200, 20 * options.rows),
                deadline="4h",
                price_ceiling=2 * int(ASK),
                checkpoint_every=options.steps,
            )
            return await _observed(market, submitted.job, options)


@dataclass(frozen=True)
class Readers:
    """All who read, as they go."""

    events: list[Lags]
    tasks: dict[str, "asyncio.Task[Shown]"]
    last: "asyncio.Future[int]"
    since: float


def _readers(market: Stack, job: JobId, options: argparse.Namespace, tasks: TaskGroup) -> Readers:
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    events = [Lags() for _ in range(options.watchers)]
    for each in events:
        tasks.create_task(watch_job(market.client.url, job, each))
    shown = {}
    if options.watchers:
        shown["job watch"] = tasks.create_task(watch_by_command(market, job))
        shown["page"] = tasks.create_task(watch_by_page(market, job, last))
    return Readers(events, shown, last, time.time())


async def _observed(market: Stack, job: JobId, options: argparse.Namespace) -> dict[str, Any]:
    used, before = Used(), Used()
    before.find(market)
    async with asyncio.timeout(PATIENCE), TaskGroup() as tasks:
        readers = _readers(market, job, options, tasks)
        while (view := await market.job(job)).state not in DONE_STATES:
            # In a thread: readers in this process would be late by as long.
            await asyncio.to_thread(used.find, market)
            for _ in range(LOOKS):
                await asyncio.sleep(LOOK_SECONDS)
                used.look()
        await asyncio.to_thread(used.find, market)
        readers.last.set_result(view.progress.step)
    api = used.total(API) - before.total(API)
    of_job = used.total(*JOB_MODULES)
    return {
        "state": view.state,
        "steps sealed": view.progress.step,
        **_spread_of(readers.events),
        **_steps_of(readers),
        "API, CPU s": round(api, 2),
        "job, CPU s": round(of_job, 2),
        "API / job": round(api / of_job, 4) if of_job else None,
    }


def _steps_of(readers: Readers) -> dict[str, Any]:
    return {
        f"lag of steps, {name}, s": _percentiles(
            step_lags(task.result(), readers.events[0].happened, readers.since)
        )
        for name, task in readers.tasks.items()
    }


def _spread_of(lags: list[Lags]) -> dict[str, Any]:
    if not lags:
        return {}
    kinds: dict[str, list[float]] = defaultdict(list)
    for each in lags:
        for kind, values in each.by_kind.items():
            kinds[kind] += values
    every = [value for values in kinds.values() for value in values]
    return {
        "each once, in order": all(
            each.numbers == list(range(1, len(each.numbers) + 1)) for each in lags
        ),
        "lag of all events, s": _percentiles(every),
        **{f"lag of {kind}, s": _percentiles(kinds[kind]) for kind in sorted(kinds)},
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"events": 0}
    at = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    last = len(ordered) - 1
    found = {
        name: round(ordered[min(last, int(part * len(ordered)))], 3) for name, part in at.items()
    }
    return {"events": len(ordered)} | found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--peers", type=int, default=3, help="of a stage")
    parser.add_argument("--units", type=int, default=2, help="of a peer in a step")
    parser.add_argument("--rows", type=int, default=96, help="of a unit")
    parser.add_argument("--recipe", default="tiny_llama", help="whose steps are work, or micro")
    parser.add_argument("--checking", choices=("on", "off"), default="on")
    parser.add_argument("--watchers", type=int, default=2)
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    result |= {
        **vars(options),
        "aim": f"p95 <= {AIM_SECONDS} s, API / job <= {AIM_PART}",
        "commit": commit(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    for name, value in result.items():
        print(f"{name:28} {value}")
    print(json.dumps(result))
    if result["steps sealed"] < options.steps:
        raise SystemExit(f"the job ended early, with {result['steps sealed']} steps")


if __name__ == "__main__":
    main()
