"""How late do people see what happens in a job, and what does it cost to show it to them?

`python -m tests.benchmarks.feed_lag [--steps N] [--stages N] [--peers N] [--watchers N]
[--checking off]` prints a table and one line of JSON with machine, versions and commit. A whole
market runs, every service; as many providers as stages x peers train a small job while watchers
follow it by the SDK (`client.job_events`, which `watch` folds), each over a connection of its own.

Lag is the reader's wall clock when it has an event, less the event's own time `at`: of a step
report the coordinator's when the step was sealed, of all others the market's when it stored what
happened. Clocks are those of one machine. Only what happened while somebody watched counts; a
validation loss comes later than the step that it is of, so the second report of a step is left out.

CPU seconds are from /proc, from the job's posting to its last seal: of the API, whose streams are
the feed, as a part of those of coordinator, trainers and peers. The API takes the job's messages
too, which it would without any watcher; so its time is beside that of a run with `--watchers 0`.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.terms.ids import JobId
from market.api import schemas
from tallystick.sdk.client import MarketClient
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.stage_throughput import commit
from tests.support.stack import Stack, stack

API = "market.api"
JOB_MODULES = ("tallystick.coordinator", "tallystick.trainer", "tallystick.provider.peer")
LOOK_SECONDS = 2.0
PATIENCE = 3600.0
AIM_SECONDS, AIM_PART = 1.0, 0.03


@dataclass
class Lags:
    """Of the events that one watcher saw, in seconds, by kind."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    numbers: list[int] = field(default_factory=list)
    _reported: set[int] = field(default_factory=set)

    def note(self, number: int, event: schemas.JobEvent, since: float) -> None:
        """An event was seen now; what was there before anybody watched has no lag."""
        now, happened = time.time(), event.at / 1000
        self.numbers.append(number)
        if isinstance(event, schemas.ReportedEvent):
            if event.step in self._reported:
                return
            self._reported.add(event.step)
        if happened >= since and event.kind != "end":
            self.by_kind[event.kind].append(now - happened)


@dataclass
class Used:
    """CPU seconds by process, as last seen: a process that has ended stays."""

    seconds: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def look(self, market: Stack) -> None:
        """Read /proc."""
        for module in (API, *JOB_MODULES):
            for one in market.find(module):
                if seconds := cpu_seconds(one.pid):
                    self.seconds[module][one.pid] = seconds

    def total(self, *modules: str) -> float:
        """Of all processes that ran these."""
        return sum(sum(self.seconds[module].values()) for module in modules)


async def watch_job(url: str, job: JobId, lags: Lags) -> None:
    """Note every event until the last seal."""
    since = time.time()
    async with (
        MarketClient(url) as client,
        aclosing(client.job_events(job)) as events,
    ):
        async for number, event in events:
            lags.note(number, event, since)
            if isinstance(event, schemas.StateEvent) and event.state == "finished":
                return


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one job and watch it."""
    with tempfile.TemporaryDirectory(prefix="tallystick-feed-") as folder:
        async with AsyncExitStack() as started:
            market = await started.enter_async_context(stack(Path(folder), forked=True))
            for number in range(options.stages * options.peers):
                market.start_provider(f"p{number}")
            submitted = await market.submit(
                name="feed lag",
                steps=options.steps,
                stages=options.stages,
                model={"num_layers": options.stages},
                peers_per_stage=options.peers,
                units_per_step=2 * options.peers,
                checking=options.checking,
                budget=200,
                checkpoint_every=options.steps,
            )
            return await _observed(market, submitted.job, options.watchers)


async def _observed(market: Stack, job: JobId, num_watchers: int) -> dict[str, Any]:
    used, before = Used(), Used()
    before.look(market)
    lags = [Lags() for _ in range(num_watchers)]
    watching = asyncio.gather(*(watch_job(market.client.url, job, each) for each in lags))
    async with asyncio.timeout(PATIENCE):
        while (await market.job(job)).state not in ("finished", "closed", "refunded", "failed"):
            used.look(market)
            await asyncio.sleep(LOOK_SECONDS)
        used.look(market)
        await watching
    api = used.total(API) - before.total(API)
    of_job = used.total(*JOB_MODULES)
    view = await market.job(job)
    return {
        "state": view.state,
        "steps sealed": view.progress.step,
        **_spread_of(lags),
        "API, CPU s": round(api, 2),
        "job, CPU s": round(of_job, 2),
        "API / job": round(api / of_job, 4) if of_job else None,
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


if __name__ == "__main__":
    main()
