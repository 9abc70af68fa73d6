"""Two sites, and the network between them is cut without a reset: the other site goes on.

Each stage has members on both sides. Time is simulated: the other site has a minute to seal three
steps, of which it spends only what it waits. The coordinator is where one member
of stage 1 and two of stage 0 are.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.terms.ids import SessionKey
from tests.faults.test_memory_swarm import SIX, UNITS, swarm_of
from tests.support.lying import Answer, AnsweringTransport
from tests.support.simulated_time import loop_seconds
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, patient_rules
from training.coordinator.ports import Wish
from training.transport import calls
from training.transport.port import Handler, Transport

STEPS = 9
CUT_IN = 3
LONGEST = 60.0  # seconds
PASS = 1.0  # seconds, of an item through a stage: three steps take longer than silence is borne
SEALS = 3  # in the silence
RULES = patient_rules(redo_after=1000, exchange_timeout=5000)


class Slow:
    """A coordinator that hears of each result late, as if it had taken its time."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        """See `port.Handler.handle`."""
        if method == calls.NEXT_ITEM.name:
            said = calls.NextItem.decoded(header, max_bytes=calls.NEXT_ITEM.max_header_bytes)
            await asyncio.sleep(PASS if said.results else 0)
        return await self._handler.handle(caller, method, header, tensors)


def slow(name: str, transport: Transport) -> Transport:
    """Passes take `PASS`."""
    return AnsweringTransport(transport, Slow) if name == COORDINATOR else transport


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
                self.seals.append(loop_seconds() - self.silent_since)
            if len(self.seals) == SEALS:
                self._hear()
        elif self.heard_again.is_set() and self._is_back():
            self.swarm.wishes.wish = Wish(2, "running")

    def _silence(self) -> None:
        self.silent_since = loop_seconds()
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
        names = [COORDINATOR, *self.swarm.papers.members]
        keys = {name: self.swarm.session_of(name).key for name in names}
        inside = [key for name, key in keys.items() if name in self.site]
        return inside, [key for key in keys.values() if key not in inside]

    def _is_back(self) -> bool:
        back = {line["peer"] for line in self.swarm.lines("peer_returned")}
        return back >= {self.swarm.session_of(name).peer for name in self.site}


def items_averaged(swarm: MemorySwarm) -> int:
    """Items of the claims that a RoundClosed names, of all stages together."""
    return sum(len(claim.numbers) for claims in swarm.merged().values() for claim in claims)


@pytest.mark.parametrize(
    ("event", "barren"),
    [
        ("claim_stored", []),
        pytest.param("seal_stored", [], marks=pytest.mark.nightly),
        # Shards that only the silent have: no mean without them, and the RoundClosed is out.
        pytest.param("round_closed", [CUT_IN], marks=pytest.mark.nightly),
    ],
)
@pytest.mark.simulated_time
async def test_swarm__site_falls_silent__the_other_goes_on_and_it_works_again_later(
    tmp_path: Path, event: str, barren: list[int]
) -> None:
    swarm = swarm_of(tmp_path, *SIX, stages=2, steps=STEPS, validate_every=STEPS, rules=RULES)
    cut = Cut(swarm, event)
    swarm.watch, swarm.wrap = cut.watch, slow

    await swarm.run(timeout=600)

    assert len(cut.seals) == SEALS, f"{len(cut.seals)} steps were sealed in the silence"
    lapsed = [line["step"] for line in swarm.lines("round_void", of=COORDINATOR)]
    assert lapsed == barren
    if not barren:
        assert items_averaged(swarm) == 2 * UNITS * STEPS, "no item is lost"
    later = {c.peer for c in swarm.claims() if c.round > CUT_IN + SEALS + 1}
    assert later >= {swarm.session_of(name).peer for name in cut.site}
