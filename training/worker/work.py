"""A peer at work under one lease: the parts of it, put together, and how it begins and ends.

Each part says its invariants: `units` (passes), `commits` (GradCommits), `averages` (parts and
means), `states` (seals, checkpoints). They share a `Station`; its engine lets one work at a time.
"""

import asyncio
from pathlib import Path

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.errors import InvariantBroken
from training.telling import Tell
from training.transport.calls import PlaceView
from training.worker.averages import Averages
from training.worker.book import WorkerBook
from training.worker.commits import Commits
from training.worker.peers import Peers
from training.worker.states import States
from training.worker.station import ComputeFor, Station
from training.worker.units import Units


class Work:
    """One worker's part in a job."""

    def __init__(
        self,
        book: WorkerBook,
        compute_for: ComputeFor,
        folder: Path,
        peers: Peers,
        session: SessionKeys,
        tell: Tell,
    ) -> None:
        """`folder` holds what is not in the journal; the compute is made when there is a stage."""
        self.station = Station(book, folder, peers, session, tell)
        self.units = Units(self.station)
        self.commits = Commits(self.station, self.units)
        self.averages = Averages(self.station)
        self.states = States(self.station, self.units, self.averages, compute_for)

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

    async def close(self) -> None:
        """Stop; what is computed at this moment is waited for."""
        await self.station.engine.close()
