"""Whom to ask for a pass: a balancer a stage, and who is left out because of what it made.

Validation groups have balancers of their own: they count in nobody's quota. Units: seconds.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from contracts.terms import errors
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber, UnitId
from training.swarm.routing import Balancer, Listed

SHORTEST, TIMES_USUAL = 5.0, 2.0  # seconds, and times what a pass usually takes: its deadline
EVALUATION_TIME = 30.0  # it waits behind all that is paid, and nothing waits for it
MOST_BLAME = 3  # complaints in a step

Workers: TypeAlias = Mapping[StageIndex, tuple[Listed, ...]]
Stand: TypeAlias = tuple[StageIndex, bool]
"""A stage, and whether it evaluates."""


class Choosing:
    """Of one job."""

    def __init__(self, seed: int) -> None:
        """`seed`: of the ties between equal peers."""
        self._seed, self._version = seed, 0
        self._step, self._workers = StepNumber(0), dict[StageIndex, tuple[Listed, ...]]()
        self._balancers: dict[Stand, Balancer] = {}
        self._seen: dict[PeerId, tuple[StepNumber, StageIndex, Listed]] = {}  # listed last when
        self._blamed: defaultdict[PeerId, list[PeerId]] = defaultdict(list)  # by whom

    def __getitem__(self, stand: Stand) -> Balancer:
        return self._balancers.get(stand, Balancer(self._seed + stand[0]))

    def __setitem__(self, stand: Stand, balancer: Balancer) -> None:
        self._balancers[stand] = balancer

    def list_stage(self, step: StepNumber, stage: StageIndex, workers: tuple[Listed, ...]) -> None:
        """These may be asked from now on. Who is not listed for a moment, as at the beginning of a
        step, is as fast as before."""
        if step != self._step:
            self._step = step
            self._blamed.clear()
            self._seen = {peer: seen for peer, seen in self._seen.items() if seen[0] + 1 >= step}
        self._workers[stage] = workers
        self._seen |= {each.peer: (step, stage, each) for each in workers}

    def announce(
        self,
        stage: StageIndex,
        missing: Collection[UnitId],
        counted: Mapping[PeerId, int],
        times: int = 1,
    ) -> None:
        """Let those that are listed be asked again.

        Args:
            stage: Of theirs.
            missing: Units that are not counted in it.
            counted: How many units are counted of whom.
            times: By what caps are lifted.
        """
        self._announce(
            (stage, False),
            missing,
            lambda each: Listed(
                each.peer, each.rate, max(times - 1, each.quota * times), counted.get(each.peer, 0)
            ),
        )

    def announce_groups(self, stage: StageIndex, num_groups: int) -> None:
        """Let those that are listed evaluate."""
        self._announce((stage, True), (), lambda each: Listed(each.peer, each.rate, num_groups))

    def _announce(
        self, stand: Stand, missing: Collection[UnitId], listed: Callable[[Listed], Listed]
    ) -> None:
        workers = {each.peer for each in self._workers.get(stand[0], ())}
        asked = {peer for peer in workers if not self._is_useless(peer)} or workers
        known = [each for _, stage, each in self._seen.values() if stage == stand[0]]
        self._version += 1
        self[stand] = self[stand].announced(
            [listed(e) if e.peer in asked else Listed(e.peer, e.rate, quota=0) for e in known],
            step=self._step,
            version=self._version,
            missing=missing,
        )

    def _is_useless(self, peer: PeerId) -> bool:
        """Whether a peer is not asked for the rest of the step.

        One that makes what nobody can use answers quickly, again and again; without it the caps of
        the others are lifted, as if it were silent. What one receiver says alone may be its own
        fault.
        """
        by = self._blamed.get(peer, ())
        return len(by) >= MOST_BLAME and len(set(by)) > 1

    def choose(
        self, stand: Stand, unit: UnitId, samples: float, avoid: Iterable[PeerId]
    ) -> PeerId | None:
        """Who makes it now; None: nobody may be asked."""
        self[stand], peer = self[stand].choose(unit, samples, avoid=avoid)
        return peer

    def is_able(self, stand: Stand, peer: PeerId) -> bool:
        """Whether it may end what it has begun, if it is here."""
        entry = self[stand].entries.get(peer)
        return entry is not None and not entry.banned

    def adopt(self, stand: Stand, unit: UnitId, peer: PeerId) -> bool:
        """Give it a unit that it has from before; whether it may have it."""
        adopted = self[stand].adopted(unit, peer)
        self[stand] = adopted or self[stand]
        return adopted is not None

    def charge(self, stand: Stand, peer: PeerId, samples: float) -> None:
        """It has work that was not chosen here."""
        self[stand] = self[stand].charged(peer, samples)

    def note_answer(self, stand: Stand, peer: PeerId, samples: float, seconds: float) -> None:
        """It took so long for a pass that went well."""
        self[stand] = self[stand].answered(peer, samples, seconds)

    def note_failure(
        self, stand: Stand, unit: UnitId, peer: PeerId, code: str, lacks: Digest
    ) -> None:
        """A pass did not go well; who is late or lacks a tensor may be asked again."""
        if lacks != ZERO_DIGEST:
            self[stand] = self[stand].released(unit, peer)
        else:
            is_late = code == errors.DeadlineExceeded.code
            self[stand] = self[stand].failed(unit, peer, by_deadline=is_late)

    def has_others(self, stand: Stand, without: set[PeerId]) -> bool:
        """Whether anybody else may be asked."""
        workers = (each.peer for each in self._workers.get(stand[0], ()))
        return any(peer not in without and self.is_able(stand, peer) for peer in workers)

    def blame(self, unit: UnitId, peers: Iterable[PeerId], by: Iterable[PeerId]) -> None:
        """What these peers have cannot be fetched from them: ask others, where there are any."""
        for peer in peers:
            self._blamed[peer].extend(by)
            for stand, balancer in self._balancers.items():
                self._balancers[stand] = balancer.failed(unit, peer)

    def time_for(
        self, stand: Stand, peer: PeerId, samples: float, num_open: int, late: int
    ) -> float:
        """Seconds after which another peer is asked.

        What a peer was measured to take includes its queue; before its first answer the `num_open`
        passes that it has of us are added. Where everybody is slow each deadline that has passed
        (`late`) doubles the next one of its unit.
        """
        shortest, entry = EVALUATION_TIME if stand[1] else SHORTEST, self[stand].entries.get(peer)
        if entry is None:
            return shortest
        usual = samples / entry.speed.samples_per_second
        if not entry.speed.num_updates:
            usual *= num_open
        return float(max(shortest, TIMES_USUAL * usual) * 2**late)
