"""What does rebalancing bring in stages that lose peers (SWARM, arXiv 2301.11913, Algorithm 2)?

Simulated time: instances of one speed come and are preempted; each peer loads a state of its stage
for a minute first, also when it moves. Who moves, and which stage a newcomer joins, is decided by
the product's own functions, from rates that are measured with an error. Beside that, newcomers in
a stage drawn at random: what moves do alone.

Throughput is the number of peers that work in the smallest stage, integrated over time; the best
possible one is that of all peers spread evenly, also those that load.

The paper replays 32 hours of logs of 400 preemptible T4, which we do not have. Ours has their
length and number, and is made by a seed: a shortage comes 7 h after the last one and takes 1 h, on
average. In one, nobody comes and an instance lives for 2 h; else for 14 h, and another one takes
its place after 10 min. Together that is a mean life of 8 h.

`python -m bench.rebalancing [--stages N ...] [--runs N] [--seed N]` prints a table.
"""

import heapq
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

from bench.measuring import about, limit, markdown, parsed, parser_of, tell
from contracts.terms.ids import ZERO_DIGEST, Address, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.targets import ItemWeights
from training.rounds.membership import group_for_newcomer
from training.rounds.state import Terms, first_state
from training.strategies.every_step.rebalance import rebalance
from training.strategies.port import Layout, Member

MINUTE, HOUR = 60.0, 3600.0  # seconds
INSTANCES, LENGTH = 400, 32 * HOUR
LIFE, LIFE_IN_SHORTAGE, AWAY = 14 * HOUR, 2 * HOUR, 10 * MINUTE  # means
UNTIL_SHORTAGE, SHORTAGE = 7 * HOUR, HOUR  # means
LOADING = MINUTE
RATE, ERROR = 10**6, 0.05  # items in 1e6 s, and the standard deviation of a measurement of it
STAGES, RUNS = (4, 8, 16), 10
PERIODS = (None, 300, 60)  # seconds between two moves
PAPER = (82.7, 95.8, 97.6)  # % of the best possible, for these periods

Life = tuple[float, float]  # of an instance: from when until when


def lives(chance: Random) -> list[Life]:
    """All instances of a trace."""
    short, at = list[tuple[float, float]](), 0.0
    while at < LENGTH:
        begins = at + chance.expovariate(1 / UNTIL_SHORTAGE)
        at = begins + chance.expovariate(1 / SHORTAGE)
        short.append((begins, at))

    def after(at: float, mean: float, mean_in_shortage: float) -> float:
        """When something happens that takes `mean` from `at` on, or another time in shortages."""
        left = chance.expovariate(1)
        for begins, ends in short:
            for until, now in ((begins, mean), (ends, mean_in_shortage)):
                if at + left * now <= until:
                    return at + left * now
                left -= max(0.0, until - at) / now
                at = max(at, until)
        return LENGTH

    found = list[Life]()
    for _ in range(INSTANCES):
        comes = 0.0
        while comes < LENGTH:
            goes = after(comes, LIFE, LIFE_IN_SHORTAGE)
            found.append((comes, goes))
            comes = after(goes, AWAY, math.inf)
    return found


class Simulation:
    """A job of so many stages whose peers come and go as a trace says."""

    def __init__(self, num_stages: int, period: int | None, *, is_random: bool, seed: int) -> None:
        self._chance = Random(f"{seed} errors")
        self._terms = terms_of(num_stages)
        self._period, self._is_random = period, is_random
        self._now, self._number = 0.0, count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._members: dict[PeerId, Member] = {}
        self._loads: dict[PeerId, float] = {}  # until when
        self._working = Counter[StageIndex]()
        self._done: defaultdict[int, float] = defaultdict(float)  # by hour
        self._best: defaultdict[int, float] = defaultdict(float)
        self.moves = 0
        for number, (comes, goes) in enumerate(lives(Random(seed))):
            self._plan(comes, partial(self._join, number))
            self._plan(goes, partial(self._leave, peer_of(number)))
        if period is not None:
            self._plan(period, self._rebalance)

    def run(self) -> tuple[float, float]:
        """Throughput in % of the best possible one: of the whole, and of its worst hour."""
        stages = self._terms.groups
        while self._events and self._events[0][0] < LENGTH:
            at, _, happens = heapq.heappop(self._events)
            hour, span = int(self._now / HOUR), at - self._now
            self._done[hour] += span * min(self._working[stage] for stage in stages)
            self._best[hour] += span * len(self._members) / len(stages)
            self._now = at
            happens()
        worst = min(self._done[hour] / self._best[hour] for hour in self._done)
        return 100 * sum(self._done.values()) / sum(self._best.values()), 100 * worst

    def _plan(self, at: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._number), happens))

    def _measured(self) -> int:
        return max(1, round(RATE * self._chance.gauss(1, ERROR)))

    def _join(self, number: int) -> None:
        if self._is_random and self._now > 0:
            stage = self._chance.choice(self._terms.groups)
        else:
            empty = first_state(self._terms)
            stage = group_for_newcomer(replace(empty, members=self._members, started=True))
        peer, owner = peer_of(number), Address(number.to_bytes(20, "big"))
        self._members[peer] = Member(
            peer, stage, "", StepNumber(0), owner, self._measured(), bandwidth=1
        )
        self._load(peer, LOADING if self._now > 0 else 0.0)

    def _load(self, peer: PeerId, span: float) -> None:
        until = self._loads[peer] = self._now + span
        self._plan(until, lambda: self._begin(peer, until))

    def _begin(self, peer: PeerId, planned: float) -> None:
        if self._loads.get(peer) == planned:
            del self._loads[peer]
            self._working[self._members[peer].group] += 1

    def _leave(self, peer: PeerId) -> None:
        stage = self._members.pop(peer).group
        if self._loads.pop(peer, None) is None:
            self._working[stage] -= 1

    def _rebalance(self) -> None:
        assert self._period is not None
        placed = [replace(each, rate=self._measured()) for each in self._members.values()]
        flops, period = (1,) * len(self._terms.groups), 1000 * self._period
        move = rebalance(placed, flops, since_move=period, period=period)
        if move is not None:
            member = self._members[move.peer]
            self._leave(move.peer)
            self._members[move.peer] = replace(member, group=move.target)
            self._load(move.peer, LOADING)
            self.moves += 1
        self._plan(self._now + self._period, self._rebalance)


def terms_of(num_stages: int) -> Terms:
    """Of a job of which only the stages matter."""
    groups = map(StageIndex, range(num_stages))
    layout = Layout(
        outputs={group: () for group in groups},
        items_per_round=1,
        ordered_items=1,
    )
    return Terms(
        job=JobId(ZERO_DIGEST),
        layout=layout,
        weights=ItemWeights(1, ZERO_DIGEST, 0),
        peers_per_group=1,
        round_ms=1,
        commit_ms=1,
        deliver_ms=1,
        reduce_ms=1,
        hold_ms=1,
        redo_after=1,
        lease_grace=1,
    )


def peer_of(number: int) -> PeerId:
    """Of an instance."""
    return PeerId(number.to_bytes(32, "big"))


def measure(num_stages: int, seeds: Sequence[int], *, is_random: bool) -> dict[str, str]:
    """A row: means over traces, throughput and (the worst hour's), and moves an hour."""
    row = {"stages": str(num_stages), "newcomers": "at random" if is_random else "by rule"}
    for period in PERIODS:
        runs = list[tuple[float, float]]()
        moves = 0
        for seed in seeds:
            simulation = Simulation(num_stages, period, is_random=is_random, seed=seed)
            runs.append(simulation.run())
            moves += simulation.moves
        mean, worst = (statistics.mean(each) for each in zip(*runs, strict=True))
        row[title(period)] = f"{mean:.1f} ({worst:.1f})"
    row[f"moves an hour, {title(PERIODS[-1])}"] = f"{moves / len(seeds) * HOUR / LENGTH:.1f}"
    return row


def title(period: int | None) -> str:
    """Of a column."""
    return "none" if period is None else f"T = {period} s"


def main() -> None:
    """Simulate and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--stages", type=int, nargs="+", default=STAGES)
    parser.add_argument("--runs", type=int, default=RUNS, help="traces")
    parser.add_argument("--seed", type=int, default=1, help="of the first trace")
    options = parsed(parser, minutes=60, stages=STAGES[:1], runs=1)
    seeds = range(options.seed, options.seed + options.runs)
    rows = list[dict[str, str]]()
    with limit(options.minutes, "simulations"):
        for is_random in (False, True):
            for num_stages in options.stages:
                rows.append(measure(num_stages, seeds, is_random=is_random))
                tell(str(rows[-1]))
    paper = map(str, PAPER)
    rows.append(dict(zip(rows[0], ("the paper", "", *paper, ""), strict=True)))
    print(markdown(rows))
    print(json.dumps(about(seed=options.seed, runs=options.runs)))


if __name__ == "__main__":
    main()
