"""Whole jobs of three stages in which anybody dies, loses files, leaves or is cut off at any time.

A seed chooses what goes wrong and when; time is simulated. Whatever it is, the job ends. The update
of each round is that of its sealed items, each counted once in every stage. Who did them is paid
for them, unless somebody else reduced a bucket that it was dealt.
"""

import asyncio
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from contracts.terms.ids import PeerId
from contracts.terms.work import RoundClosed
from tests.faults.test_memory_swarm import NINE, QUICK, STEPS, UNITS, swarm_of
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, patient_rules

IN_THE_GATE, AT_NIGHT = 3, 200  # jobs
OFTEN = 1 / 60  # of all lines that are told: something goes wrong at it
LOST = ("tensors", "shards", "buckets")  # folders of a worker


@dataclass
class Chaos:
    """What goes wrong in a job: `MemorySwarm.dies_at`."""

    swarm: MemorySwarm
    chance: Random
    left: int = 10
    has_begun: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, _name: str, line: Line) -> str | None:
        """Who dies at this line; nobody before there is work, for which all nine are waited for."""
        if line["event"] == "item_done" and not self.has_begun:
            self._begin()
        if not self.has_begun or not self.left or self.chance.random() > OFTEN:
            return None
        self.left -= 1
        kind = self.chance.choice(("kill", "kill", "wipe", "cut"))
        self.seen.append(kind)
        workers = [*self.swarm.papers.members]
        if kind == "cut":
            self._cut(*self.chance.sample([COORDINATOR, *workers], 2))
            return None
        if kind == "kill":
            return self.chance.choice([COORDINATOR, *workers])
        victim = self.chance.choice(workers)
        rmtree(self.swarm.folder / victim / self.chance.choice(LOST), ignore_errors=True)
        return victim

    def _begin(self) -> None:
        """Choose who leaves, and who is lost for good, in two stages.

        In one stage they may be all who have its state, while the third was cut off: a leaver waits
        for who lags no longer than `lease_grace`, so the state would be nowhere.
        """
        self.has_begun = True
        stages = {
            name: line["stage"] for name in NINE for line in self.swarm.lines("joined", of=name)
        }
        leaver = self.chance.choice(NINE)
        others = [name for name in NINE if stages[name] != stages[leaver]]
        self.swarm.for_good = frozenset({self.chance.choice(others)})
        step = self.chance.randint(1, STEPS)
        self.swarm.leaving = {(COORDINATOR, "claim_stored", step): leaver}

    def _cut(self, one: str, other: str) -> None:
        """Nothing passes between two parties for a while, and neither is told."""
        network = self.swarm.network
        sides = [self.swarm.session_of(one).key], [self.swarm.session_of(other).key]
        network.silence(*sides)
        seconds = self.chance.choice((0.1, 2.0, 20.0))
        asyncio.get_running_loop().call_later(seconds, network.hear, *sides)


def flops_earned(swarm: MemorySwarm, sealed: Set[int]) -> Counter[PeerId]:
    """Of what is merged in `sealed` rounds, but for peers one of whose buckets another reduced."""
    spec, earned = swarm.papers.spec.message, Counter[PeerId]()
    reduced = {
        (each.peer, each.subject, each.group, each.bucket) for each in swarm.claims("bucket")
    }
    merged = swarm.merged()
    for closed in swarm.messages(RoundClosed):
        dealt = zip(closed.reducers, spec.chunking.all, strict=True)
        lost = {peer for peer, at in dealt if (peer, closed.digest(), *at) not in reduced}
        for claim in merged[closed.round] if closed.round in sealed else []:
            if claim.peer not in lost:
                earned[claim.peer] += len(claim.numbers) * spec.item_flops[claim.group]
    return earned


async def until_over(swarm: MemorySwarm) -> None:
    """Run a job to its end; who is cut off then looks for its coordinator for ever."""
    running = asyncio.ensure_future(swarm.run(timeout=600))
    while not running.done() and not swarm.lines("finished", of=COORDINATOR):
        await asyncio.sleep(1)
    await asyncio.wait([running], timeout=30)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.simulated_time
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[] if seed < IN_THE_GATE else pytest.mark.nightly)
        for seed in range(AT_NIGHT)
    ],
)
async def test_swarm__anything_goes_wrong__weights_and_pay_are_those_of_the_sealed_units(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    rules = patient_rules(**QUICK, redo_after=chance.choice((200, 3000)))
    swarm = swarm_of(tmp_path, *NINE, stages=3, validate_every=STEPS, rules=rules)
    swarm.dies_at = chaos = Chaos(swarm, chance)

    await until_over(swarm)

    spec, record = swarm.papers.spec.message, swarm.history().record
    assert chaos.seen and swarm.restarts, "a job in which nothing went wrong shows nothing"
    assert record is not None and record.ended and not swarm.refused
    sealed = {seal.step for seal in swarm.seals() if seal.gradient_norm}
    updates = [
        sorted({item for claim in claims for item in claim.numbers})
        for step, claims in swarm.merged().items()
        if step in sealed
    ]
    assert sorted(chain(*updates)) == list(range(STEPS * UNITS))
    assert record.pay.earned == flops_earned(swarm, sealed)
    plain = plain_run(spec, updates)
    for stage, roots in enumerate(swarm.state_roots()):
        assert roots == {plain.states[stage]}
