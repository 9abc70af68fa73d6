"""Who reads a job's feed in the benchmark of its lag: the SDK, `job watch`, a page in a browser.

A reader notes the wall clock, in seconds, when it first shows a step. What shows several steps at
once shows each of them then, so nothing that a reader leaves out counts as prompt.
"""

import asyncio
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias

from contracts.terms.ids import JobId
from market import bodies
from tallystick.sdk.client import MarketClient
from tests.browser.driving import Browser, browser_in
from tests.support.stack import Stack

Shown: TypeAlias = Sequence[tuple[int, float]]
"""Steps, ascending, each with the second since 1970 in which it was first to be seen."""

_STEP = re.compile(rb"step (\d+)/")
# The page notes by itself, as a person would see it: what is asked from outside is later.
_NOTE = r"""
(() => {
  const shown = window.shown = [];
  const note = () => {
    const found = /step (\d+) of/.exec(document.getElementById("said")?.textContent ?? "");
    if (found === null) return;
    const step = Number(found[1]);
    if (step > (shown.at(-1)?.[0] ?? 0)) shown.push([step, Date.now() / 1000]);
  };
  const all = { childList: true, characterData: true, subtree: true }; // a morph changes texts
  new MutationObserver(note).observe(document.body, all);
  note();
})()
"""


@dataclass
class Lags:
    """Of the events that one watcher saw, in seconds, by kind; and when each step happened."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    numbers: list[int] = field(default_factory=list)
    happened: dict[int, float] = field(default_factory=dict)
    _reported: set[int] = field(default_factory=set)

    def note(self, number: int, event: bodies.JobEvent, since: float) -> None:
        """An event was seen now; what was there before anybody watched has no lag."""
        now, happened = time.time(), event.at / 1000
        self.numbers.append(number)
        if isinstance(event, bodies.SealedEvent | bodies.ReportedEvent):
            before = self.happened.get(event.step, happened)
            self.happened[event.step] = min(before, happened)
        if isinstance(event, bodies.ReportedEvent):
            if event.step in self._reported:
                return
            self._reported.add(event.step)
        if happened >= since and event.kind != "end":
            self.by_kind[event.kind].append(now - happened)


async def watch_job(url: str, job: JobId, lags: Lags) -> None:
    """Note every event until the last seal."""
    since = time.time()
    async with (
        MarketClient(url) as client,
        aclosing(client.job_events(job)) as events,
    ):
        async for number, event in events:
            lags.note(number, event, since)
            if isinstance(event, bodies.StateEvent) and event.state == "finished":
                return


async def watch_by_command(market: Stack, job: JobId) -> Shown:
    """When `tallystick job watch` printed each step."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick", "job", "watch", job.hex()),
        *("--market", market.client.url),
        env=market.environment("watcher"),
        stdout=asyncio.subprocess.DEVNULL,  # how the job stands at the end
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    shown: list[tuple[int, float]] = []
    try:
        async for line in process.stderr:
            found = _STEP.search(line)
            if found and int(found[1]) > (shown[-1][0] if shown else 0):
                shown.append((int(found[1]), time.time()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return shown


class Page:
    """A job's page in a browser."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        browser.open(url)
        browser.evaluate(_NOTE)

    def shown(self, last: int) -> Shown:
        """Which steps it has shown, and when, once it shows `last`."""
        self._browser.wait(f"window.shown.at(-1)?.[0] >= {last}")
        return [(int(step), float(at)) for step, at in self._browser.evaluate("window.shown")]


async def watch_by_page(market: Stack, job: JobId, last: "asyncio.Future[int]") -> Shown:
    """When the job's page showed each step, until it shows `last`."""
    with browser_in(market.folder / "browser") as browser:
        page = await asyncio.to_thread(Page, browser, f"{market.client.url}/jobs/{job.hex()}")
        return await asyncio.to_thread(page.shown, await last)


def step_lags(shown: Shown, happened: dict[int, float], since: float) -> list[float]:
    """Seconds from each step that happened after `since` to when a reader first showed it."""
    lags, place = [], 0
    for step, at in sorted(happened.items()):
        while shown[place][0] < step:
            place += 1
        if at >= since:
            lags.append(shown[place][1] - at)
    return lags
