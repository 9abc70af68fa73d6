"""What the coordinator answers: peers that join, trainers that ask for work and report it."""

import asyncio
from collections.abc import Callable, Sequence

from typing_extensions import Buffer

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden
from contracts.terms.ids import JobId, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.messages import LeaseAccept, Message
from contracts.terms.signatures import Signed, decode_signed
from training.coordinator.book import Book
from training.coordinator.ports import Clock
from training.swarm.duties import missing_places, workers_of
from training.swarm.events import PeerJoined, PeerReturned, UnitsDone, UnitsLacked
from training.swarm.membership import stage_for_newcomer
from training.swarm.state import Closed, Finished, Member, Place, Working
from training.transport import calls
from training.transport.dispatch import Dispatcher, Tensors
from training.transport.wire import AnyMethod

LONG_POLL = 20.0  # seconds that a trainer waits for work before it hears that there is none

_OF_TRAINERS = (calls.NEXT_STEP.name, calls.UNITS_DONE.name)


class Answers:
    """The methods that a coordinator serves."""

    def __init__(self, book: Book, *, clock: Clock, welcome: Callable[[PeerId], None]) -> None:
        """`welcome` is called for every peer that has joined or returned."""
        self._book, self._clock, self._welcome = book, clock, welcome
        self.roster: dict[SessionKey, Signed[LeaseAccept]] = {}
        self.dismissed: set[SessionKey] = set()  # trainers that know that the job has ended

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(authorize=self._authorize)
        dispatcher.on(calls.JOIN, self.join)
        dispatcher.on(calls.NEXT_STEP, self.next_step)
        dispatcher.on(calls.UNITS_DONE, self.units_done)
        return dispatcher

    def _authorize(self, caller: SessionKey, method: AnyMethod) -> None:
        trainers = self._book.record_of_job.opening.trainers
        if method.name in _OF_TRAINERS and caller not in trainers:
            raise Forbidden(f"{method.name} is for this job's trainers")
        if method.name == calls.JOIN.name:
            self._lease_of(caller)

    def _lease_of(self, caller: SessionKey) -> LeaseAccept:
        """The lease under which `caller` may join: a sealed one, else one of the roster."""
        if lease := self._book.record_of_job.leases.get(peer_id(caller)):
            return lease
        if caller in self.roster:
            return self.roster[caller].message
        raise Forbidden("no lease of this job is known for this session key")

    def _need_job(self, job: JobId) -> None:
        if job != self._book.record_of_job.job:
            raise Conflict("another job")

    # ----------------------------------------------------------------------------------- peers

    async def join(
        self, caller: SessionKey, request: calls.Join, tensors: Tensors
    ) -> tuple[calls.Joined, Sequence[Buffer]]:
        """A peer comes, or comes back.

        Raises:
            Forbidden: its lease is not the one that the market has accepted.
            Conflict: the job is over, and it was not part of it.
        """
        self._need_job(request.job)
        sent = [decode_signed(bytes(tensor)).message for tensor in tensors]
        if sent != [self._lease_of(caller)]:
            raise Forbidden("this is not the lease that the market has accepted")
        peer = peer_id(caller)
        if peer in self._book.state.members:
            self._return(peer, request)
        else:
            self._admit(caller, request)
        member = self._book.state.members[peer]
        self._welcome(peer)
        joined = calls.Joined(
            stage=member.stage, step=self._book.state.step, members=member_views(self._book)
        )
        return joined, ()

    def _admit(self, caller: SessionKey, request: calls.Join) -> None:
        if isinstance(self._book.state.phase, Finished):
            raise Conflict("the job has ended")
        sealed, every = self._book.state.step - 1, self._book.record_of_job.spec.batch
        needed = oldest_chunks(sealed, every.checkpoint_every)
        if request.applied < needed:
            raise Conflict(
                f"a newcomer would need the averaged chunks since step {request.applied}, and "
                f"members keep those since step {needed}"
            )
        joined = PeerJoined(
            peer_id(caller),
            stage_for_newcomer(self._book.state),
            request.address,
            StepNumber(request.applied),
            self._lease_of(caller).digest(),
            self._clock(),
        )
        if joined.peer in self._book.record_of_job.leases:
            self._book.record(joined)  # it had left, and is back under the same lease
        else:
            lease = self.roster[caller]
            self._book.record(joined, Signed[Message](lease.message, lease.signature))

    def _return(self, peer: PeerId, request: calls.Join) -> None:
        at = self._clock()
        applied = StepNumber(request.applied)
        self._book.record(PeerReturned(peer, request.address, applied, at))
        held = {(place.stage, place.unit) for place in request.held}
        if applied + 1 != self._book.state.step:
            held = set()
        if lacked := tuple(place for place in self._done_by(peer) if place not in held):
            self._book.record(UnitsLacked(self._book.state.step, peer, lacked, at))

    def _done_by(self, peer: PeerId) -> tuple[Place, ...]:
        match self._book.state.phase:
            case Working(draft) | Closed(draft):
                return tuple(sorted(place for place, doer in draft.done.items() if doer == peer))
        return ()

    # -------------------------------------------------------------------------------- trainers

    async def next_step(
        self, caller: SessionKey, request: calls.NextStep, _tensors: Tensors
    ) -> tuple[calls.StepWork, Sequence[Buffer]]:
        """Work, as soon as there is some that the trainer has not seen, or how things are."""
        self._need_job(request.job)
        try:
            async with asyncio.timeout(LONG_POLL):
                while not self._is_news(request):
                    await self._book.changes.beyond(self._book.changes.version)
        except TimeoutError:
            pass  # the answer says how things are; the trainer decides what to try
        work = self._work()
        if work.finished:
            self.dismissed.add(caller)
            self._book.changes.mark()
        return work, ()

    def _is_news(self, request: calls.NextStep) -> bool:
        if isinstance(self._book.state.phase, Finished):
            return True
        if self._book.changes.version <= request.seen:
            return False
        work = self._work()
        fresh = {worker.session_key for worker in work.workers} - set(request.known)
        return bool(work.places and fresh)

    def _work(self) -> calls.StepWork:
        state = self._book.state
        places = missing_places(state)
        stages = {stage for stage, _ in places}
        workers = [member for stage in sorted(stages) for member in workers_of(state, stage)]
        return calls.StepWork(
            version=self._book.changes.version,
            step=state.step,
            places=tuple(calls.PlaceView(stage=stage, unit=unit) for stage, unit in places),
            workers=tuple(member_view(self._book, member) for member in workers),
            finished=isinstance(state.phase, Finished),
        )

    async def units_done(
        self, _caller: SessionKey, request: calls.UnitsReport, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """Units that came back; what does not fit the step changes nothing."""
        self._need_job(request.job)
        by_peer: dict[PeerId, list[Place]] = {}
        for each in request.done:
            by_peer.setdefault(each.peer, []).append((each.stage, each.unit))
        for peer, places in by_peer.items():
            step = StepNumber(request.step)
            self._book.record(UnitsDone(step, peer, tuple(places), self._clock()))
        return calls.Done(), ()


def oldest_chunks(sealed: int, checkpoint_every: int) -> int:
    """The step since when all members certainly keep chunks: of the oldest of two checkpoints."""
    written = sealed // checkpoint_every
    return checkpoint_every * max(min(1, written), written - 1)


def member_view(book: Book, member: Member) -> calls.MemberView:
    """What others need to know to reach and trust a member."""
    key = book.key_of(member.peer)
    return calls.MemberView(session_key=key, stage=member.stage, address=member.address)


def member_views(book: Book, stage: StageIndex | None = None) -> tuple[calls.MemberView, ...]:
    """All members, or those of one stage."""
    members = sorted(book.state.members.values(), key=lambda member: member.peer)
    return tuple(member_view(book, each) for each in members if stage in (None, each.stage))
