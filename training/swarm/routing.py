"""Which unit goes out next, and to whom. Pure.

Whoever is free takes the lowest unit of its stage: so one peer gets all units in ascending order,
and several get as many as they are fast. Weights, caps and pinning come with many peers.

Invariant: a unit is with one peer at a time, and goes out again, before all higher ones, when that
peer did not answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from contracts.terms.ids import PeerId, StageIndex
from training.swarm.state import Place


@dataclass(frozen=True)
class Route:
    """Units that wait, and units that are with a peer."""

    waiting: tuple[Place, ...]
    away: frozenset[tuple[Place, PeerId]] = frozenset()

    def next_for(self, peer: PeerId, stage: StageIndex) -> tuple["Route", Place | None]:
        """Give `peer` the lowest waiting unit of its stage, if there is one."""
        place = next((place for place in self.waiting if place[0] == stage), None)
        if place is None:
            return self, None
        waiting = tuple(each for each in self.waiting if each != place)
        return replace(self, waiting=waiting, away=self.away | {(place, peer)}), place

    def came_back(self, peer: PeerId, place: Place) -> "Route":
        """`peer` has done the unit."""
        return replace(self, away=self.away - {(place, peer)})

    def failed(self, peer: PeerId, place: Place) -> "Route":
        """`peer` did not answer: the unit waits again, in its order."""
        waiting = tuple(sorted({*self.waiting, place}))
        return replace(self, waiting=waiting, away=self.away - {(place, peer)})


def route(places: Iterable[Place]) -> Route:
    """All of `places` wait."""
    return Route(tuple(sorted(places)))
