"""What the coordinator answers: peers that come and go, and ask for work."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from typing_extensions import Buffer

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden, Malformed, PeerUnreachable, Unavailable
from contracts.terms.ids import JobId, PeerId, SessionKey, StepNumber
from contracts.terms.messages import AuditReport, LeaseAccept, Message
from contracts.terms.signatures import Signed, decode_signed, expect
from training.coordinator.book import Book
from training.coordinator.items import Items, WhyIdle
from training.coordinator.measuring import Measuring
from training.coordinator.ports import Clock
from training.swarm.events import (
    PeerJoined,
    PeerLeaving,
    PeerReturned,
    UnitsLacked,
)
from training.swarm.membership import stage_for_newcomer, state_step_for
from training.swarm.state import Closed, Finished, Place, Working
from training.transport import calls
from training.transport.dispatch import Dispatcher, Tensors
from training.transport.port import Session
from training.transport.relay import Relay
from training.transport.wire import PING, RELAY, AnyMethod

_OF_PEERS = (
    *(calls.JOIN.name, calls.NEXT_ITEM.name, calls.LEAVE.name, calls.GET_MEMBERS.name),
    *(calls.REPORT.name, calls.FIND.name),
)
_OUTSIDE_CALLS = (
    *(calls.GET_MEMBERS.name, calls.REPORT.name, calls.FIND.name),
    *(RELAY.name, PING.name),
)


class Answers:
    """The methods that a coordinator serves."""

    def __init__(
        self,
        book: Book,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        measuring: Measuring,
        items: Items,
        *,
        clock: Clock,
        welcome: Callable[[PeerId], None],
        why_idle: WhyIdle,
    ) -> None:
        """`welcome` is called for every peer that has joined or returned."""
        self._book, self._sessions, self._measuring = book, sessions, measuring
        self._items = items
        self._clock, self._welcome, self._why_idle = clock, welcome, why_idle
        self.relay = Relay(sessions, calls.RELAYED, self._authorize_relay)
        self.roster: dict[SessionKey, Signed[LeaseAccept]] = {}

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(authorize=self._authorize)
        dispatcher.on(calls.JOIN, self.join)
        dispatcher.on(calls.LEAVE, self.leave)
        dispatcher.on(calls.REPORT, self.take_report)
        dispatcher.on(calls.GET_MEMBERS, self.get_members)
        dispatcher.on(calls.NEXT_ITEM, self.next_item)
        dispatcher.on(RELAY, self.relay.serve)
        return dispatcher

    def _authorize(self, caller: SessionKey, method: AnyMethod) -> None:
        if self._is_outside(caller):
            if method.name not in _OUTSIDE_CALLS:
                raise Forbidden(f"{method.name} is not for outside auditors")
        elif method.name in _OF_PEERS:
            self._lease_of(caller)

    def _authorize_relay(self, caller: SessionKey, to: SessionKey, method: AnyMethod) -> None:
        members = {self._book.key_of(peer) for peer in self._book.state.members}
        is_audit = method.name in calls.FOR_AUDITORS and self._is_outside(caller)
        if not (is_audit or caller in members) or to not in members:
            raise Forbidden(f"{method.name} is not passed on between these two")

    def _is_outside(self, caller: SessionKey) -> bool:
        """Whether somebody may be drawn from outside, and does not work here."""
        is_listed = caller in self._listed_outside
        return is_listed and peer_id(caller) not in self._book.record_of_job.leases

    @cached_property
    def _listed_outside(self) -> frozenset[SessionKey]:
        return frozenset(each.session_key for each in self._book.record_of_job.outside.auditors)

    async def take_report(
        self, caller: SessionKey, request: calls.Report, tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """An audit that was drawn is done.

        Raises:
            BadSignature, Malformed: not a report of the caller.
            Conflict: nobody asks for it (any more), or it does not follow from its distances.
            Equivocation: another one was handed in for the same draw.
        """
        self._need_job(request.job)
        signed = expect(decode_signed(bytes(tensors[0])), AuditReport) if tensors else None
        if signed is None or peer_id(caller) != signed.message.auditor:
            raise Malformed("an auditor hands in one report, its own")
        self._book.take_report(signed, self._clock())
        return calls.Done(), ()

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
            Conflict: the job is over, and it was not part of it; it is suspended; or it says that
                it has applied a seal that we have not given.
            Unavailable: it did not show in time how fast it is; or its account has no bond, or no
                limit, that suffices.
        """
        self._need_job(request.job)
        sent = [decode_signed(bytes(tensor)).message for tensor in tensors]
        if sent != [self._lease_of(caller)]:
            raise Forbidden("this is not the lease that the market has accepted")
        if request.applied > self._book.record_of_job.step:
            raise Conflict("a seal of this step was never given", step=request.applied)
        peer = peer_id(caller)
        if peer in self._book.record_of_job.checking.convicts:
            raise Conflict("audits have found false work of this peer", suspended=True)
        if peer not in self._book.state.members:
            await self._admit(caller, request)
        else:
            self._return(peer, request)
        member = self._book.state.members[peer]
        self._welcome(peer)
        joined = calls.Joined(
            stage=member.stage,
            step=self._book.state.step,
            state_step=state_step_for(self._book.state, member.stage),
            members=self._book.member_views(),
        )
        return joined, ()

    async def _admit(self, caller: SessionKey, request: calls.Join) -> None:
        """Take in a newcomer as soon as it has shown how fast it is."""
        peer, session = peer_id(caller), self._sessions().get(caller)
        if isinstance(self._book.state.phase, Finished):
            raise Conflict("the job has ended")
        if session is None:
            raise PeerUnreachable("the session has ended", node=caller.hex())
        if (why := self._why_idle(self._lease_of(caller).account)) is not None:
            raise Unavailable(f"its account is not given work now: {why}", why=why)
        stage = self._book.stage_before(peer)
        if stage is None:
            stage = stage_for_newcomer(self._book.state, self._measuring.stages())
        rate = await self._measuring.rate_of(peer, session, stage)
        if peer in self._book.state.members:  # by another call, meanwhile
            return self._return(peer, request)
        if isinstance(self._book.state.phase, Finished):
            raise Conflict("the job has ended")
        lease = self._lease_of(caller)
        joined = PeerJoined(
            peer=peer,
            stage=stage,
            address=request.address,
            applied=StepNumber(request.applied),
            lease=lease.digest(),
            owner=lease.account,
            rate=rate,
            bandwidth=request.bandwidth,
            at=self._clock(),
        )
        if peer in self._book.record_of_job.leases:
            self._book.record(joined)  # it had left, and is back under the same lease
        else:
            signed = self.roster[caller]
            self._book.record(joined, Signed[Message](signed.message, signed.signature))

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
                own = (place for place, copy in draft.done.items() if copy.peer == peer)
                return tuple(sorted(own))
        return ()

    async def get_members(
        self, _caller: SessionKey, request: calls.GetMembers, _tensors: Tensors
    ) -> tuple[calls.MembersView, Sequence[Buffer]]:
        """Who the members are now."""
        self._need_job(request.job)
        return calls.MembersView(members=self._book.member_views()), ()

    async def leave(
        self, caller: SessionKey, request: calls.Leave, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """A peer wants to go; what it has done of this step is still committed and averaged.

        Raises:
            Conflict: it is no member (any more), and free to go.
        """
        self._need_job(request.job)
        peer = peer_id(caller)
        self._book.record(PeerLeaving(peer, self._clock()))
        if peer not in self._book.state.members:
            raise Conflict("no member of this job")
        return calls.Done(), ()

    async def next_item(
        self, caller: SessionKey, request: calls.NextItem, _tensors: Tensors
    ) -> tuple[calls.ItemTasks, Sequence[Buffer]]:
        """Tasks, as soon as there are some, or none after a while.

        Raises:
            Conflict: it is no member (any more).
        """
        self._need_job(request.job)
        if peer_id(caller) not in self._book.state.members:
            raise Conflict("no member of this job")
        return await self._items.next(peer_id(caller), request), ()
