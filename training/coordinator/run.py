"""One job's coordinator from start to end: serve, ask, tick, feed, until the last seal is out."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.governance.checking import Begin, unread
from contracts.terms.beacons import Beacons
from contracts.terms.digest import peer_id
from contracts.terms.errors import Refused, Unavailable
from contracts.terms.ids import PeerId, SessionKey
from contracts.terms.messages import JobSpec, LeaseAccept
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from training.coordinator.blobs import Blobs
from training.coordinator.board import Board
from training.coordinator.drawing import Drawing
from training.coordinator.driver import Driver, Pause
from training.coordinator.feeding import Feeding
from training.coordinator.handlers import Handlers
from training.coordinator.heeding import Heeding
from training.coordinator.items import ItemRoutes, validation_due
from training.coordinator.journal import JobJournal, Opening, Signer
from training.coordinator.limiting import Limiting
from training.coordinator.measuring import Measuring, Nanoseconds
from training.coordinator.ports import Clock, Feed, Limits, Roster, Wishes
from training.coordinator.rebalancing import PERIOD, Rebalancing
from training.journal import Journal
from training.rounds import events
from training.rounds.owed import all_applied, next_deadline
from training.rounds.state import Finished
from training.strategies.port import Bucket, PureStrategy
from training.tasks import end, first_error
from training.telling import Rarely, Tell
from training.transport.endpoint import system_clock
from training.transport.port import Session, Transport

ASK_ROSTER_EVERY = 1.0  # seconds, while somebody is missing
ASK_FULL_ROSTER_EVERY = 10.0  # less than a market waits for somebody silent
HEED_EVERY = 0.5  # seconds
LOOK_EVERY = 2.0  # seconds between two looks at limits
LONGEST_NAP = 3600.0

__all__ = ["Clocks", "CoordinatedJob", "Opening", "Signer", "World", "run_coordinator"]


@dataclass(frozen=True)
class CoordinatedJob:
    """The job, and the keys that it is coordinated with."""

    spec: Signed[JobSpec]  # signed by its poster
    opening: Opening  # what the JobOpening says; counts on the first start only
    signer: Signer
    rules: PureStrategy  # of its strategy
    elements: Mapping[Bucket, int]  # of each bucket
    begin: Begin = unread  # makes the fold of a checked job's draws
    rebalance_every: int = PERIOD  # ms between two moves of peers to slower groups


@dataclass(frozen=True)
class World:
    """What a coordinator reaches outside its folder."""

    transport: Transport  # under its session key; served here, closed by the caller
    listen: str  # `host:port`, port 0 for a free one
    announce: Callable[[str], None]  # called once with the address that is listened on
    feed: Feed
    roster: Roster
    wishes: Wishes
    limits: Limits
    beacons: Beacons | None = None  # by which a checked job is drawn; None where nobody checks


@dataclass(frozen=True)
class Clocks:
    """How a coordinator measures time."""

    clock: Clock = system_clock  # moments of events and deadlines
    stopwatch: Nanoseconds = time.perf_counter_ns  # times the reference items of newcomers
    pause: Pause = asyncio.sleep  # waits between tries


async def run_coordinator(
    folder: Path, job: CoordinatedJob, world: World, tell: Tell, clocks: Clocks | None = None
) -> None:
    """Coordinate a job until its last seal is applied and posted; start again where it was.

    Args:
        folder: Holds `journal.sqlite` and `kept.sqlite`, made on first use.
        job: What is coordinated.
        world: What is reached meanwhile.
        tell: The log.
        clocks: By default those of this machine.

    Raises:
        BadSignature, Conflict: spec, wallet or folder belong to another job.
        Unavailable: the journal cannot be written.
        WrongConfiguration: the address cannot be listened on.
        InvariantBroken: no valid seal follows from what was recorded.
        Refused, Misbehaved: the market will never take what comes next in the journal.
    """
    clocks = clocks or Clocks()
    with Journal(folder / "journal.sqlite") as file:
        journal = JobJournal(file, job.spec, job.opening, job.signer, job.rules, tell, job.begin)
        running = _Running(folder, journal, world, job, clocks, tell)
        try:
            world.announce(await running.listen(world.listen))
            await running.until_over()
        finally:
            await running.close()


class _Running:
    """The tasks of one start."""

    def __init__(
        self,
        folder: Path,
        journal: JobJournal,
        world: World,
        job: CoordinatedJob,
        clocks: Clocks,
        tell: Tell,
    ) -> None:
        transport, clock, pause = world.transport, clocks.clock, clocks.pause
        self._job, self._transport, self._roster = journal, transport, world.roster
        self._heeding = Heeding(journal, world.wishes, clock=clock, tell=tell)
        self._limiting = Limiting(journal, world.limits, clock=clock, tell=tell)
        self._board = Board(journal)
        self._blobs = Blobs(
            folder, journal, job.elements, lambda: transport.sessions, clock=clock, tell=tell
        )
        self._drawing = world.beacons and Drawing(
            journal, world.beacons, self._blobs, clock=clock, tell=tell, pause=pause
        )
        self._clock, self._tell, self._pause = clock, tell, pause
        self._tell_rarely = Rarely(tell)
        why_idle = self._limiting.why_idle
        self._items = ItemRoutes(journal, clock=clock, why_idle=why_idle, tell=tell)
        self._rebalancing = Rebalancing(
            journal,
            lambda: transport.sessions,
            period=job.rebalance_every,
            clock=clock,
            tell=tell,
        )
        self._handlers = Handlers(
            journal,
            lambda: transport.sessions,
            Measuring(journal.record_of_job.job, clocks.stopwatch),
            self._items,
            self._board,
            self._blobs,
            targets=self._rebalancing.targets,
            clock=clock,
            welcome=self._welcome,
            why_idle=why_idle,
        )
        self._driver = Driver(
            journal,
            transport,
            self._board,
            clock=clock,
            tell=tell,
            pause=pause,
            on_applied=self._blobs.drop,
        )
        self._feeding = Feeding(journal, world.feed, tell=tell, pause=pause)
        self._served: set[PeerId] = set()
        self._gone: set[SessionKey] = set()
        self._ticked_at = UnixMillis(0)
        self._tasks = asyncio.TaskGroup()
        journal.may_work, journal.on_effect = self._limiting.may_work, self._do

    def _do(self, effect: events.Effect) -> None:
        """What the machine asks for beside messages and seals."""
        match effect:
            case events.Send():
                self._driver.wake(effect)
            case events.KeepBytes():
                self._blobs.keep(effect)

    async def close(self) -> None:
        """Give up what is on its way."""
        await self._blobs.close()

    async def listen(self, address: str) -> str:
        """Come back to life in the state of the journal, and answer."""
        self._job.record(events.Controlled("resumed", self._clock()))
        self._job.go_on(self._clock())  # a seal may have been due when the process ended
        self._heeding.look()  # a paused job begins no round only because its coordinator started
        self._tell("opened", step=self._job.state.round, job=self._job.record_of_job.job)
        self._trust([])
        bound = await self._transport.serve(
            self._handlers.dispatcher(), listen=address, on_disconnect=self._left
        )
        assert bound is not None  # an address was given
        return bound

    async def until_over(self) -> None:
        """Run every task until the job is over, or one of them fails."""
        with first_error():
            await self._until_over()
        self._tell("relayed", bytes=self._handlers.relay.bytes_passed)  # in this start

    async def _until_over(self) -> None:
        async with self._tasks:
            background = [
                self._tasks.create_task(self._feeding.run()),
                self._tasks.create_task(self._items.run()),
                self._tasks.create_task(self._tick()),
                self._tasks.create_task(self._ask_roster()),
                self._tasks.create_task(self._heed()),
                self._tasks.create_task(self._note_losses()),
                self._tasks.create_task(self._look()),
                self._tasks.create_task(self._rebalancing.run()),
            ]
            if self._drawing:
                background.append(self._tasks.create_task(self._drawing.run()))
                background.append(self._tasks.create_task(self._turn_away()))
            for peer in self._job.state.members:
                self._welcome(peer)
            await self._over()
            await self._limiting.look()  # what is earned by the last seal has its limits, if it can
            self._tell("finished", step=self._job.state.round)
            await end((*background, *self._driving))

    _driving: tuple[asyncio.Task[None], ...] = ()

    def _welcome(self, peer: PeerId) -> None:
        if peer not in self._served:
            self._served.add(peer)
            task = self._tasks.create_task(self._driver.serve(peer))
            self._driving = (*self._driving, task)

    async def _over(self) -> None:
        """The last seal is posted, and every member has applied it or had its time to."""
        while not isinstance(self._job.state.phase, Finished):
            if self._job.failure is not None:
                raise self._job.failure
            await self._job.changes.beyond(self._job.changes.version)
        if not await self._in_grace(lambda: not validation_due(self._job)):
            self._tell("not_validated", step=self._job.state.round)
        if not await self._in_grace(lambda: all_applied(self._job.state) >= self._job.state.round):
            self._tell("somebody_left_early", step=self._job.state.round)
        while not self._feeding.is_done:
            await self._job.changes.beyond(self._job.changes.version)

    async def _in_grace(self, holds: Callable[[], bool]) -> bool:
        """Whether it holds at last; nobody is waited for longer than `lease_grace`."""
        try:
            async with asyncio.timeout(self._job.state.terms.lease_grace / 1000):
                while not holds():
                    await self._job.changes.beyond(self._job.changes.version)
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------ membership

    def _left(self, session: Session) -> None:
        """A session has ended; the member may have a newer one."""
        self._gone.add(session.node)
        self._job.changes.mark()

    async def _note_losses(self) -> None:
        while True:
            seen = self._job.changes.version
            while self._gone:
                key = self._gone.pop()
                if key not in self._transport.sessions:
                    self._job.record(events.Disconnected(peer_id(key), self._clock()))
            await self._job.changes.beyond(seen)

    async def _turn_away(self) -> None:
        """End the sessions of who was suspended; each hears why when it comes again."""
        turned: set[PeerId] = set()
        while True:
            seen = self._job.changes.version
            record = self._job.record_of_job
            gone = record.checking.convicts & record.leases.keys()  # the rest is outside anyway
            for peer in gone - turned - self._job.state.members.keys():
                turned.add(peer)
                if (session := self._transport.sessions.get(self._job.key_of(peer))) is not None:
                    await session.close()
            await self._job.changes.beyond(seen)

    async def _ask_roster(self) -> None:
        while True:
            try:
                accepted = await self._roster.accepted()
                self._trust(accepted)
                await self._limiting.trust(each.message for each in accepted)
            except (Unavailable, Refused) as error:
                self._tell_rarely("roster_waits", code=error.code, reason=error.message)
            await self._pause(ASK_FULL_ROSTER_EVERY if self._is_full() else ASK_ROSTER_EVERY)

    def _is_full(self) -> bool:
        """Whether everybody who was asked for is here, so that nobody new is on the way."""
        batch = self._job.record_of_job.spec.batch
        wanted = batch.stages * batch.peers_per_stage + batch.spares
        return len(self._job.state.members) >= wanted

    async def _look(self) -> None:
        while True:
            await self._limiting.look()
            await self._pause(LOOK_EVERY)

    async def _heed(self) -> None:
        while True:
            self._heeding.look()
            await self._pause(HEED_EVERY)

    def _trust(self, leases: Sequence[Signed[LeaseAccept]]) -> None:
        self._handlers.roster |= {lease.message.session_key: lease for lease in leases}
        known = (lease.session_key for lease in self._job.record_of_job.leases.values())
        outside = (each.session_key for each in self._job.record_of_job.outside.auditors)
        self._transport.set_members({*known, *outside, *self._handlers.roster})

    # ------------------------------------------------------------------------------------ time

    async def _tick(self) -> None:
        while True:
            seen = self._job.changes.version
            try:
                async with asyncio.timeout(self._nap()):
                    await self._job.changes.beyond(seen)
            except TimeoutError:
                self._time_passed()

    def _job_ends(self) -> UnixMillis:
        return UnixMillis(self._job.record_of_job.spec.deadline * 1000)

    def _nap(self) -> float:
        state = self._job.state
        due = next_deadline(state, after=self._ticked_at)
        moments = [] if due is None else [due]
        if not state.stopping:
            moments.append(self._job_ends())
        spans = [(moment - self._clock()) / 1000 for moment in moments]
        return max(0.001, min([*spans, LONGEST_NAP]))

    def _time_passed(self) -> None:
        now = self._clock()
        if now >= self._job_ends() and not self._job.state.stopping:
            self._job.record(events.Controlled("stop", now))
        self._job.record(events.Ticked(now))
        self._ticked_at = now
