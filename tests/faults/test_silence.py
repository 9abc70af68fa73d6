"""Two sites, and the network between them is cut without a reset: the other site goes on.

Each stage has members on both sides. Time is a tenth of the real one: a session is silent after
0.35 s, the site for 6 s, unless three steps are sealed before. The coordinator and the trainer are
where one member of stage 1 and two of stage 0 are.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from contracts.terms.ids import SessionKey
from contracts.terms.messages import AverageSet
from tests.faults.test_memory_swarm import SIX, UNITS, swarm_of
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, patient_rules
from training.coordinator.ports import Wish
from training.transport import reach
from training.transport.port import Limits

STEPS = 9
CUT_IN = 3
LONGEST = 6.0  # seconds: a minute, ten times faster
SEALS = 3  # in the silence
LIMITS = Limits(silence=timedelta(seconds=0.35))
RULES = patient_rules(redo_after=100)


@dataclass
class Cut:
    """Silences a site at a line of the coordinator, until steps are sealed without it."""

    swarm: MemorySwarm
    event: str
    site: frozenset[str] = frozenset()
    silent_since: float | None = None
    seals: list[float] = field(default_factory=list)
    """Seconds from the cut to each seal in the silence."""
    heard_again: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self, name: str, line: Line) -> None:
        """See `MemorySwarm.watch`."""
        if name != COORDINATOR:
            return
        if self.silent_since is None and (line["event"], line.get("step")) == (self.event, CUT_IN):
            self._silence()
        elif self.silent_since is not None and not self.heard_again.is_set():
            if line["event"] == "seal_stored":
                self.seals.append(time.monotonic() - self.silent_since)
            if len(self.seals) == SEALS:
                self._hear()
        elif self.heard_again.is_set() and self._is_back():
            self.swarm.wishes.wish = Wish(2, "running")

    def _silence(self) -> None:
        self.silent_since = time.monotonic()
        stage_of = {line["peer"]: line["stage"] for line in self.swarm.lines("peer_joined")}
        mates: list[list[str]] = [[], []]
        for name in self.swarm.papers.members:
            mates[stage_of[self.swarm.session_of(name).peer]].append(name)
        self.site = frozenset([*mates[0][:1], *mates[1][:2]])
        self.swarm.network.silence(*self._sides())
        asyncio.get_running_loop().call_later(LONGEST, self._hear)

    def _hear(self) -> None:
        """The job waits for the site, so that it does not end before it is back."""
        if not self.heard_again.is_set():
            self.swarm.wishes.wish = Wish(1, "paused")
            self.heard_again.set()
            self.swarm.network.hear(*self._sides())

    def _sides(self) -> tuple[list[SessionKey], list[SessionKey]]:
        names = [COORDINATOR, *self.swarm.papers.trainers, *self.swarm.papers.members]
        keys = {name: self.swarm.session_of(name).key for name in names}
        inside = [key for name, key in keys.items() if name in self.site]
        return inside, [key for key in keys.values() if key not in inside]

    def _is_back(self) -> bool:
        back = {line["peer"] for line in self.swarm.lines("peer_returned")}
        return back >= {self.swarm.session_of(name).peer for name in self.site}


def units_averaged(swarm: MemorySwarm) -> int:
    """Units of GradCommits that an AverageSet holds."""
    counted = {m.grad_commit for each in swarm.messages(AverageSet) for m in each.members}
    return sum(c.num_units for c in swarm.commits() if c.digest() in counted)


@pytest.mark.parametrize(
    ("event", "barren"),
    [
        ("seal_stored", []),
        ("step_closed", []),
        # Parts that only the silent have: no sum without them, and the AverageSet is out.
        pytest.param("average_set_stored", [CUT_IN], marks=pytest.mark.chaos),
    ],
)
async def test_swarm__site_falls_silent__the_other_goes_on_and_it_works_again_later(
    tmp_path: Path, event: str, barren: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "DETOUR", 0.1)
    swarm = swarm_of(tmp_path, *SIX, stages=2, steps=STEPS, validate_every=STEPS, rules=RULES)
    swarm.limits = LIMITS
    cut = Cut(swarm, event)
    swarm.watch = cut.watch

    await swarm.run(timeout=60)

    assert len(cut.seals) == SEALS, f"{len(cut.seals)} steps were sealed in the silence"
    lapsed = [line["step"] for line in swarm.lines("ended_without_update", of=COORDINATOR)]
    assert lapsed == barren
    if not barren:
        assert units_averaged(swarm) == 2 * UNITS * STEPS, "no unit is lost"
    later = {c.peer for c in swarm.commits() if c.step > CUT_IN + SEALS + 1}
    assert later >= {swarm.session_of(name).peer for name in cut.site}
