"""Which peer of a stage computes a unit next: SWARM's `ExpertBalancer`, with quotas. Pure.

Per stage a heap of (cumulative expected runtime, tie-break, peer). Whoever is smallest
gets the unit, and its expected runtime is added: interleaved weighted round robin. A peer that is
new starts level with the smallest, so it is tried at once. One whose call failed, but not by its
deadline, is banned until it is announced again. Before its first answer a peer counts as fast as
the coordinator measured it (the authors: one sample a second).

Invariant: no peer has more units of a step than its quota (docs/protocol.md 7, caps); a unit is
with one peer at a time. Source: SWARM 2301.11913, `swarm/pipeline/src/moe/client/balancer.py`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from zlib import crc32

from contracts.terms.ids import PeerId, StepNumber
from contracts.terms.items import ItemNumber
from training.swarm.throughput import Throughput

FORWARD = 1.0  # samples that a forward pass of a unit counts as
BACKWARD = 2.5
NO_STEP = StepNumber(0)
_MICRO = 10**6  # rates are in units per 1e6 seconds


@dataclass(frozen=True)
class Listed:
    """A member that may be given units now."""

    peer: PeerId
    rate: int  # units (forward and backward) per 1e6 seconds, as the coordinator measured
    quota: int  # units of this step, those counted already included
    counted: int = 0  # units that count as its work already


@dataclass(frozen=True)
class Entry:
    """What is known of one worker."""

    listed: Listed
    speed: Throughput
    runtime: float  # seconds that all it was given is expected to take, from a common beginning
    tie: int
    banned: bool = False


@dataclass(frozen=True)
class Balancer:
    """Workers of one stage. Begin with `Balancer(seed)`, then `announced`."""

    seed: int = 0  # of the tie-breaks
    step: StepNumber = NO_STEP
    version: int = 0
    entries: Mapping[PeerId, Entry] = field(default_factory=dict)
    given: Mapping[ItemNumber, PeerId] = field(default_factory=dict)  # not counted yet
    draws: int = 0

    def announced(
        self,
        workers: Iterable[Listed],
        *,
        step: StepNumber,
        version: int,
        missing: Iterable[ItemNumber],
    ) -> "Balancer":
        """Who may be asked now. Bans end with a newer version; who is not listed is forgotten.

        Args:
            workers: Those of this stage.
            step: The step that it is about.
            version: Of the list.
            missing: Units of this stage that are not counted yet.
        """
        known, level = self.entries, self._level()
        entries: dict[PeerId, Entry] = {}
        for draw, each in enumerate(workers, start=self.draws):
            if (old := known.get(each.peer)) is not None:
                banned = old.banned and version <= self.version
                entries[each.peer] = replace(old, listed=each, banned=banned)
            else:
                prior = each.rate * (FORWARD + BACKWARD) / _MICRO
                speed = Throughput(prior)
                entries[each.peer] = Entry(each, speed, level, self._tie(each.peer, draw))
        open_units = set(missing) if step == self.step else set()
        given = {unit: peer for unit, peer in self.given.items() if unit in open_units}
        draws = self.draws + len(entries)
        return Balancer(self.seed, step, max(version, self.version), entries, given, draws)

    def choose(
        self, unit: ItemNumber, samples: float = FORWARD, *, avoid: Iterable[PeerId] = ()
    ) -> tuple["Balancer", PeerId | None]:
        """Give the unit to the worker that is expected to be free first; None: nobody may have it.

        A unit that another worker had is taken from it. `avoid` names workers not to be tried.
        """
        given = {each: peer for each, peer in self.given.items() if each != unit}
        used = Counter(given.values())
        shunned = set(avoid)
        free = [
            (entry.runtime, entry.tie, peer)
            for peer, entry in self.entries.items()
            if not entry.banned
            and peer not in shunned
            and entry.listed.counted + used[peer] < entry.listed.quota
        ]
        if not free:
            return replace(self, given=given), None
        _, _, peer = min(free)
        chosen = replace(self, given={**given, unit: peer})
        return chosen.charged(peer, samples), peer

    def adopted(self, unit: UnitId, peer: PeerId) -> "Balancer | None":
        """With a unit that `peer` was given before all of this; None if it may not have it."""
        used = sum(holder == peer for each, holder in self.given.items() if each != unit)
        entry = self.entries.get(peer)
        if entry is None or entry.listed.counted + used >= entry.listed.quota:
            return None
        return replace(self, given={**self.given, unit: peer})

    def charged(self, peer: PeerId, samples: float) -> "Balancer":
        """With work for `peer` that was not chosen here: a backward goes where its forward went."""
        entry = self.entries.get(peer)
        if entry is None:
            return self
        runtime = entry.runtime + samples / entry.speed.samples_per_second
        entry = replace(entry, runtime=runtime, tie=self._tie(peer, self.draws))
        return replace(self, entries={**self.entries, peer: entry}, draws=self.draws + 1)

    def answered(self, peer: PeerId, samples: float, seconds: float) -> "Balancer":
        """`peer` took so long for a call that went well."""
        entry = self.entries.get(peer)
        if entry is None:
            return self
        entry = replace(entry, speed=entry.speed.after(samples, seconds))
        return replace(self, entries={**self.entries, peer: entry})

    def failed(self, unit: ItemNumber, peer: PeerId, *, by_deadline: bool = False) -> "Balancer":
        """A call did not go well: the unit is with nobody, and the peer banned but for deadlines.

        From one that only lacks a tensor it is taken with `released`.
        """
        freed = self.released(unit, peer)
        entry = freed.entries.get(peer)
        if entry is None or by_deadline:
            return freed
        return replace(freed, entries={**freed.entries, peer: replace(entry, banned=True)})

    def released(self, unit: ItemNumber, peer: PeerId) -> "Balancer":
        """The unit is not with `peer` any more."""
        if self.given.get(unit) != peer:
            return self
        given = {each: holder for each, holder in self.given.items() if each != unit}
        return replace(self, given=given)

    def _level(self) -> float:
        return min((entry.runtime for entry in self.entries.values()), default=0.0)

    def _tie(self, peer: PeerId, draw: int) -> int:
        return crc32(peer, crc32(f"{self.seed}/{draw}".encode()))
