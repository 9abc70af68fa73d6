"""Is the market well? What `/v1/status` says against bounds, each with its reason. Pure.

`late`: people wait longer than they should. `down`: something does not go on without an operator.
The bounds are for people who look; programs have the numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from market.bodies.market import ChainStatusView, FeedStatusView, HostStatusView, StatusView
from market.web.words import span

Health: TypeAlias = Literal["ok", "late", "down"]

_SEVERITY: tuple[Health, ...] = ("ok", "late", "down")
QUEUES = ("chain", "default")
_FOR_QUEUE = {
    "chain": "everything that is sent to the chain or read from it",
    "default": "matching, deadlines and what is told to others",
}


@dataclass(frozen=True)
class Bounds:
    """From where on something is late, and from where on it is down."""

    late: float
    down: float
    unit: Literal["s", "blocks"] = "s"

    def judge(self, value: float) -> Health:
        """A value against them."""
        if value > self.down:
            return "down"
        return "late" if value > self.late else "ok"

    def spelled(self) -> str:
        """For people."""
        return f"late above {self._said(self.late)}, down above {self._said(self.down)}"

    def _said(self, value: float) -> str:
        return span(value) if self.unit == "s" else f"{value:g} {self.unit}"


HEAD = Bounds(60, 600)
READING = Bounds(3, 50, "blocks")
QUEUE = Bounds(10, 60)
ACTION = Bounds(30, 300)
ANCHORING = Bounds(60, 600)
FEED = Bounds(1, 10)


@dataclass(frozen=True)
class Check:
    """One thing that has to go on."""

    name: str
    health: Health
    value: str
    bounds: str
    reason: str


def worst(checks: Iterable[Check]) -> Health:
    """The market is as well as what is worst."""
    return max((each.health for each in checks), key=_SEVERITY.index, default="ok")


def checks_of(status: StatusView, *, is_embedded: bool) -> tuple[Check, ...]:
    """Everything that is watched, in the order in which work goes through it."""
    return (
        Check("API and database", "ok", f"version {status.version}", "", "both have answered"),
        *_chain(status.chain, is_embedded),
        *_queues(status),
        _actions(status),
        _anchoring(status),
        _feed(status.feed),
        _hosts(status.hosts),
    )


def _chain(chain: ChainStatusView, is_embedded: bool) -> Iterator[Check]:
    if not chain.reachable or chain.head_age_millis is None:
        why = "no node answers: nothing is funded, anchored or paid until one does"
        yield Check("Chain node", "down", "not reachable", "has to answer", why)
        return
    yield Check("Chain node", "ok", f"block {chain.head}", "has to answer", "it answers")
    age = chain.head_age_millis / 1000
    value = f"{span(age)} old"
    if is_embedded:
        why = "an embedded chain makes a block only when there is a transaction"
        yield Check("Age of the chain head", "ok", value, "none: embedded chain", why)
    else:
        health = HEAD.judge(age)
        why = _why(health, "blocks come", "no new block: the chain, or our node, stands still")
        yield Check("Age of the chain head", health, value, HEAD.spelled(), why)
    yield _reading(chain)


def _reading(chain: ChainStatusView) -> Check:
    """How far events of the chain are in rows."""
    name, bounds = "Blocks not read yet", READING.spelled()
    if chain.lag_blocks is None:
        return Check(name, "late", "unknown", bounds, "nothing of the chain was read yet")
    health = READING.judge(chain.lag_blocks)
    value = f"{chain.lag_blocks} behind, read up to block {chain.seen}"
    why = "what the pages show of the chain is older than it"
    return Check(name, health, value, bounds, _why(health, "all that is confirmed is read", why))


def _queues(status: StatusView) -> Iterator[Check]:
    lags = {beat.queue: beat.lag_millis / 1000 for beat in status.beats}
    for queue in sorted({*QUEUES, *lags}):
        name, work = f"Queue {queue}", _FOR_QUEUE.get(queue, "its tasks")
        if queue not in lags:
            why = f"no worker of it was ever heard: {work} waits"
            yield Check(name, "down", "no worker", QUEUE.spelled(), why)
            continue
        health = QUEUE.judge(lags[queue])
        value = f"oldest task waits {span(lags[queue])}"
        late = f"its worker is busy or gone: {work} waits"
        yield Check(name, health, value, QUEUE.spelled(), _why(health, f"does {work}", late))


def _actions(status: StatusView) -> Check:
    name, bounds = "Chain actions that wait", ACTION.spelled()
    if not status.actions:
        return Check(name, "ok", "none", bounds, "nothing waits for the market's transactions")
    oldest = status.actions[0]
    health = ACTION.judge(oldest.age_millis / 1000)
    num = sum(each.waiting for each in status.actions)
    value = f"{num}, the oldest ({oldest.what}) for {span(oldest.age_millis / 1000)}"
    late = f"the chain does not take them, or the worker does not send them: see {oldest.what}"
    return Check(name, health, value, bounds, _why(health, "they are being sent", late))


def _anchoring(status: StatusView) -> Check:
    name, bounds = "Seals not anchored yet", ANCHORING.spelled()
    oldest = status.unanchored
    if oldest is None:
        return Check(name, "ok", "none", bounds, "every seal is in a batch on chain")
    health = ANCHORING.judge(oldest.age_millis / 1000)
    value = f"{oldest.seals}, the oldest for {span(oldest.age_millis / 1000)}"
    late = "draws, and with them pay, wait for their beacons"
    return Check(name, health, value, bounds, _why(health, "the next batch takes them", late))


def _feed(feed: FeedStatusView) -> Check:
    name, bounds = "Lag of live events", FEED.spelled()
    if feed.lag_millis is None:
        why = "nobody has watched a live event in this process yet"
        return Check(name, "ok", f"{feed.streams} streams open", bounds, why)
    lag = feed.lag_millis / 1000
    health = FEED.judge(lag)
    value = f"{lag:.2f} s at most of the newest, {feed.streams} streams open"
    if feed.hears is False:
        why = "wake-ups do not come through: readers ask every second instead"
        return Check(name, max(health, "late", key=_SEVERITY.index), value, bounds, why)
    why = _why(health, "events arrive as they happen", "pages and watchers see events late")
    return Check(name, health, value, bounds, why)


def _hosts(hosts: Sequence[HostStatusView]) -> Check:
    heard = [each for each in hosts if each.is_heard]
    name, bounds = "Hosts of coordinators", "late if one is silent, down if all are"
    value = f"{len(heard)} of {len(hosts)} heard, {sum(each.jobs for each in heard)} jobs"
    if not hosts:
        why = "none is registered: posters have to run coordinators themselves"
        return Check(name, "late", value, bounds, why)
    health: Health = "ok" if len(heard) == len(hosts) else "late" if heard else "down"
    late = "jobs of a silent host go to another one; without any they stand still"
    return Check(name, health, value, bounds, _why(health, "jobs have somebody to run them", late))


def _why(health: Health, well: str, unwell: str) -> str:
    return well if health == "ok" else unwell
