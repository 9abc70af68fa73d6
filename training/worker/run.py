"""One lease from start to end: resume, join, work until the last seal is applied, or leave."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms import errors
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.backoff import Backoff
from training.journal import Journal
from training.tasks import end
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask
from training.worker.answers import Answers
from training.worker.book import WorkerBook
from training.worker.checking import Checking
from training.worker.hosting import MemberHost
from training.worker.peers import Peers
from training.worker.ports import HONEST, Arithmetic, Behaviour
from training.worker.station import Station
from training.worker.work import Work


@dataclass(frozen=True)
class StateFile:
    """Where the state of our stage is, for who keeps the model."""

    stage: StageIndex
    step: StepNumber
    checkpoint: Path  # of the state after `step`
    turn: int  # members of the stage that come before us, in peer order


Locate: TypeAlias = Callable[[], Awaitable[str | None]]
Pause: TypeAlias = Callable[[float], Awaitable[None]]

DIAL, JOIN, LEAVE = 10.0, 300.0, 10.0  # seconds; the coordinator measures us before it answers
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
LEAVE_AGAIN = 0.5  # seconds between two questions whether we are free to go
USUAL_BANDWIDTH = 12_500_000  # bytes per second, of 100 Mbit/s: of who does not know better


@dataclass(frozen=True)
class Membership:
    """What makes us a member: three signed papers, and where wallet signatures hold."""

    spec: Signed[JobSpec]  # by its poster
    opening: Signed[JobOpening]  # by the coordinator that the spec names
    lease: Signed[LeaseAccept]  # ours, by the provider's wallet; names our session key
    domain: Domain


@dataclass(frozen=True)
class Connection:
    """How others of the job are reached, and how they reach us."""

    session: SessionKeys
    transport: Transport  # under `session`; served here, closed by the caller
    locate: Locate  # where the coordinator listens now
    listen: str = ""
    """`host:port`, port 0 for a free one; empty: none, others reach us through the coordinator or
    over sessions that we have opened."""
    bandwidth: int = USUAL_BANDWIDTH
    """Bytes per second that we think we have: decides our part in reducing."""
    pause: Pause = asyncio.sleep  # waits between tries


async def run_worker(
    folder: Path,
    membership: Membership,
    connection: Connection,
    arithmetic: Arithmetic,
    tell: Tell,
    *,
    leave: asyncio.Event | None = None,
    behaviour: Behaviour = HONEST,
    checking: Checking | None = None,
    published: Callable[[StateFile], None] = lambda state: None,
) -> StateFile | None:
    """Work under one lease until the job has ended, or we have left; start again where it was.

    Args:
        folder: Holds journal, bytes by digest, weights and checkpoints, made on first use.
        membership: What was signed.
        connection: How we reach others.
        arithmetic: What we compute with.
        tell: The log.
        leave: When it is set, we ask to go, and go when our work is sealed.
        behaviour: Where we lie, if we do.
        checking: Of a checked job: who is drawn by what, and what we do about it.
        published: Told of checkpoints that the job publishes while it goes on; they stay until two
            newer ones are stored.

    Returns:
        The state that the job ended with; None if we have left before.

    Raises:
        BadSignature, Conflict: the documents do not belong together, or to this folder; the job has
            ended, or has gone too far for a newcomer.
        Unavailable: the disk cannot be written, or a sealed bucket is nowhere.
        InvariantBroken: the state could not be built again as it was.
    """
    spec, opening, transport = membership.spec, membership.opening, connection.transport
    with Journal(folder / "journal.sqlite") as journal:
        known = (checking.auditors, checking.begin) if checking else ()
        book = WorkerBook(journal, spec, opening, membership.domain, *known)
        peers = Peers(transport, spec.message, opening.message, tell)
        if checking is not None:
            peers.trust_outside(each.session_key for each in checking.auditors.auditors)
        work = Work(
            Station(book, folder, peers, connection.session, arithmetic, behaviour, tell),
            beacons=checking.beacons if checking else None,
            leave=leave,
            published=lambda step: published(_state_file(work, step)),
        )
        auditing: asyncio.Task[None] | None = None
        try:
            await work.states.resume()
            if work.station.seat is not None:
                await work.items.resume()
            if checking:  # only now: what a replay is done with comes with our group
                auditing = asyncio.create_task(checking.auditor.run(MemberHost(work, arithmetic)))
                auditing.add_done_callback(partial(_note_end, work))
            handler = Answers(work).dispatcher()
            address = await transport.serve(handler, listen=connection.listen or None) or ""
            joining = _Joining(work, membership.lease, connection, address, tell)
            await joining.until_over()
            if joining.has_left or work.has_left:
                return None
            return _state_file(work, work.station.applied)
        finally:
            if auditing:
                await end([auditing])
            await work.close()


def _note_end(work: Work, auditing: asyncio.Task[None]) -> None:
    """Auditing ends with us; if it ends otherwise, that is a bug of ours, and no silent one."""
    if not auditing.cancelled() and not work.broken.done():
        work.broken.set_result(errors.InvariantBroken(f"auditing ended: {auditing.exception()!r}"))


def _state_file(work: Work, step: StepNumber) -> StateFile:
    at, members = work.station, work.book.record.members
    before = [peer for peer, stage in members.items() if stage == at.group and peer < at.peer]
    return StateFile(at.group, step, at.state.checkpoint(at.checkpoints, step), len(before))


class _Joining:
    """Keeps a session with the coordinator, wherever it is."""

    def __init__(
        self,
        work: Work,
        lease: Signed[LeaseAccept],
        connection: Connection,
        address: str,
        tell: Tell,
    ) -> None:
        self._work, self._lease, self._address = work, lease, address
        self._connection, self._pause = connection, connection.pause
        self._leave, self._tell = work.leave, tell
        self._tell_rarely = Rarely(tell)
        self.has_left = False

    @property
    def _is_over(self) -> bool:
        return self.has_left or self._work.is_over

    async def until_over(self) -> None:
        """Join, again whenever the session ends; the coordinator ends it after the last seal."""
        backoff, at = Backoff(FIRST_PAUSE, LONGEST_PAUSE), self._work.station
        while not self._is_over:
            try:
                if (session := await self._joined()) is not None:
                    await self._while_open(session)
                    if not self._work.states.outdated.is_set():
                        backoff.begin()
            except errors.Conflict:
                raise  # another job, or one that goes on without us: asking again changes nothing
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                self._tell_waits(error)
            if not self._is_over:
                await self._pause(backoff.next())
        if self.has_left:
            self._tell("left", step=at.applied)
        else:
            await self._work.states.stored()
            self._work.keeping.clear()
            self._tell("finished", step=at.applied, state_root=at.roots.state)

    async def _while_open(self, session: Session) -> None:
        """Serve until the session ends, or has to; raises InvariantBroken if the work is broken."""
        states, broken = self._work.states, self._work.broken
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(session.wait_closed()),
            asyncio.create_task(states.outdated.wait()),
            asyncio.create_task(self._go(session)),
            asyncio.create_task(self._work.gone.wait()),
            asyncio.create_task(self._greet()),
        ]
        talking = asyncio.create_task(self._work.talk())
        ends: list[asyncio.Future[Any]] = [*tasks[:4], talking, broken]
        tasks.append(talking)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if broken.done():
            raise broken.result()
        if not talking.cancelled():
            raise errors.InvariantBroken(f"talking ended: {talking.exception()!r}")
        self.has_left |= self._work.gone.is_set()
        if not session.closed and (self.has_left or states.outdated.is_set()):
            await session.close()

    def _tell_waits(self, error: errors.TallystickError) -> None:
        round = self._work.station.round
        self._tell_rarely("waits", step=round, code=error.code, reason=error.message)

    async def _greet(self) -> None:
        at = self._work.station
        own = set(at.layout.outputs[at.group])
        sharing = {group for group, each in at.layout.outputs.items() if own.intersection(each)}
        await at.peers.greet({*range(at.group - 1, at.group + 2), *sharing})

    # ---------------------------------------------------------------------------------- leaving

    async def _go(self, session: Session) -> None:
        """Once we want to go: serve on until we are free to, or the session fails."""
        await self._leave.wait()
        self._tell("leaves", step=self._work.station.round)
        try:
            while not await self._has_gone(session):
                await self._pause(LEAVE_AGAIN)
        except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
            self._tell_waits(error)
            await session.close()  # whoever waits for its end sees it, and begins another one

    async def _has_gone(self, session: Session) -> bool:
        """Whether we want to go, and are no member (any more)."""
        if not self._leave.is_set():
            return False
        if not self._work.has_left:
            request = calls.Leave(job=self._work.book.record.job)
            try:
                await ask(session, calls.LEAVE, request, deadline=LEAVE)
                return False
            except errors.Conflict:
                pass
        self.has_left = True
        return True

    # ---------------------------------------------------------------------------------- joining

    async def _joined(self) -> Session | None:
        """A session in which we are a member; None if we wanted to go, and are free to."""
        hint = await self._connection.locate()
        if hint is None:
            raise errors.Unavailable("the coordinator's address is not known yet")
        opening = self._work.book.record.opening
        session = await self._connection.transport.dial(opening.session_key, [hint], deadline=DIAL)
        try:
            if await self._has_gone(session):
                return None
            await self._join(session)
        except (errors.Unavailable, errors.Refused, errors.Misbehaved):
            await session.close()  # a refused session would keep us from trying again
            raise
        return session

    async def _join(self, session: Session) -> None:
        work = self._work
        request = calls.Join(
            job=work.book.record.job,
            address=self._address,
            bandwidth=self._connection.bandwidth,
            applied=work.states.goes_on_from,
        )
        tensors = [self._lease.encoded()]
        joined, _ = await ask(session, calls.JOIN, request, tensors, deadline=JOIN)
        work.station.peers.set_members(joined.members)
        group, state_round = StageIndex(joined.group), StepNumber(joined.state_round)
        await work.states.take_group(group, state_round, joined_in=StepNumber(joined.round))
        self._tell("joined", step=work.station.round, stage=group)
