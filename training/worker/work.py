"""A peer at work under one lease: the parts of it, put together, and how it begins and ends.

Each part says its invariants: `tasks`, `units` (passes), `commits` (GradCommits), `averages` (parts
and means), `states` (seals, checkpoints). They share a `Station`; its engine lets one work at a
time.
"""

import asyncio
from typing import Literal

from contracts.terms.beacons import Beacons
from contracts.terms.errors import InvariantBroken, Unavailable
from contracts.terms.ids import Digest, StepNumber
from training.transport.calls import PlaceView
from training.worker.averages import Averages
from training.worker.book import WorkerBook
from training.worker.commits import Commits
from training.worker.keeping import Keeping
from training.worker.ports import HONEST, Behaviour, Moment, Wanted
from training.worker.states import States
from training.worker.station import ComputeFor, Station
from training.worker.tasks import Tasks
from training.worker.units import Units


class Work:
    """One worker's part in a job."""

    def __init__(
        self,
        station: Station,
        compute_for: ComputeFor,
        *,
        behaviour: Behaviour = HONEST,
        beacons: Beacons | None = None,
        leave: asyncio.Event | None = None,
    ) -> None:
        """The compute is made when there is a stage.

        `leave` is set by whoever wants us to go, ourselves included; by `beacons` we compare what
        seals say of the chain.
        """
        self.station, self.behaviour = station, behaviour
        self.leave, self.gone = leave or asyncio.Event(), asyncio.Event()
        self.units = Units(self.station)
        self.tasks = Tasks(self.station, self.units)
        self.commits = Commits(self.station, self.units, behaviour)
        self.averages = Averages(self.station, behaviour)
        self.keeping = Keeping(self.station)
        self.states = States(
            self.station,
            self.units,
            self.averages,
            self.keeping,
            lambda stage: behaviour.arithmetic(compute_for(stage)),
            beacons,
        )

    @property
    def book(self) -> WorkerBook:
        """What we are bound to."""
        return self.station.book

    @property
    def broken(self) -> "asyncio.Future[InvariantBroken]":
        """Set when we are in a state that must not be: the process has to end."""
        return self.station.engine.broken

    @property
    def is_over(self) -> bool:
        """Whether the last seal is in our state."""
        return self.book.record.ended and self.station.applied == self.book.sealed

    @property
    def has_left(self) -> bool:
        """Whether a seal that we have says that we are no member any more."""
        record = self.book.record
        return self.station.peer in record.leases and self.station.peer not in record.members

    def held(self) -> tuple[PlaceView, ...]:
        """Units of this step that we can commit to, or have committed to."""
        if (stage := self.book.stage) is None:
            return ()
        units = sorted(self.units.complete() | self.book.committed())
        return tuple(PlaceView(stage=stage, unit=unit) for unit in units)

    async def serves(
        self, kind: Literal["tensor", "part", "weights"], digest: Digest, *, is_sealed: bool
    ) -> bool:
        """Whether we give away something that we may have."""
        return await self.behaviour.serves(Wanted(kind, digest, is_sealed, self.station.step))

    def depart(self, step: StepNumber, moment: Moment) -> None:
        """Go, if this is the moment to.

        Raises:
            Unavailable: we are gone without a word.
        """
        match self.behaviour.departure(step, moment):
            case "leave":
                self.leave.set()
            case "vanish":
                self.gone.set()
                raise Unavailable("this peer is gone")

    async def close(self) -> None:
        """Stop; what is computed at this moment is waited for."""
        await self.tasks.close()
        await self.station.engine.close()
