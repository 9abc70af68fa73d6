"""A peer at work under one lease: the parts of it, put together, and how it begins and ends.

Each part says its invariants: `items` (passes), `claims` (what we bind ourselves to), `exchange`
(shards and buckets), `states` (seals, checkpoints), `keeping` (evidence). They share a `Station`;
its engine lets one work at a time.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from contracts.terms.beacons import Beacons
from contracts.terms.errors import Unavailable
from contracts.terms.ids import Digest, StepNumber
from training.worker.claims import Claims
from training.worker.exchange import Exchange
from training.worker.items import Items
from training.worker.keeping import Keeping
from training.worker.ports import Moment, Wanted
from training.worker.states import States
from training.worker.station import Station


class Work:
    """One worker's part in a job."""

    def __init__(
        self,
        station: Station,
        *,
        beacons: Beacons | None = None,
        leave: asyncio.Event | None = None,
        published: Callable[[StepNumber], None] = lambda step: None,
    ) -> None:
        """`leave` is set by whoever wants us to go, ourselves included; by `beacons` we compare
        what seals say of the chain; `published` is as `States` has it.
        """
        self.station, self.book, self.behaviour = station, station.book, station.behaviour
        self.broken = station.engine.broken
        """Set when we are in a state that must not be: the process has to end."""
        self.leave, self.gone = leave or asyncio.Event(), asyncio.Event()
        self.items = Items(station)
        self.claims = Claims(station, self.items)
        self.exchange = Exchange(station)
        self.keeping = Keeping(station)
        parts = self.items, self.exchange, self.keeping
        self.states = States(station, *parts, beacons, published)

    @property
    def is_over(self) -> bool:
        """Whether the last seal is in our state."""
        return self.book.record.ended and self.station.applied == self.book.sealed

    @property
    def has_left(self) -> bool:
        """Whether a seal that we have says that we are no member any more."""
        record = self.book.record
        return self.station.peer in record.leases and self.station.peer not in record.members

    async def talk(self) -> None:
        """Take part in rounds, in one session with the coordinator, until cancelled."""
        await asyncio.gather(self.items.talk(), self.exchange.talk())

    async def serves(
        self, kind: Literal["bytes", "weights"], digest: Digest, *, is_sealed: bool
    ) -> bool:
        """Whether we give away something that we may have."""
        return await self.behaviour.serves(Wanted(kind, digest, is_sealed, self.station.round))

    def depart(self, round: StepNumber, moment: Moment) -> None:
        """Go, if this is the moment to.

        Raises:
            Unavailable: we are gone without a word.
        """
        match self.behaviour.departure(round, moment):
            case "leave":
                self.leave.set()
            case "vanish":
                self.gone.set()
                raise Unavailable("this peer is gone")

    async def close(self) -> None:
        """Stop; what is computed at this moment is waited for."""
        await self.items.close()
        await self.exchange.close()
        await self.station.engine.close()
