"""What the coordinator answers: peers that come and go, ask for items, and tell what they hold."""

from collections.abc import Callable, Mapping
from functools import cached_property

from contracts.terms.digest import peer_id
from contracts.terms.errors import Conflict, Forbidden, Malformed, PeerUnreachable, Unavailable
from contracts.terms.history import Leaves, decode_kept
from contracts.terms.ids import Digest, PeerId, SessionKey
from contracts.terms.messages import LeaseAccept
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.work import WorkClaim
from training.coordinator.blobs import Blobs
from training.coordinator.board import Board
from training.coordinator.items import ItemRoutes, WhyIdle
from training.coordinator.journal import JobJournal
from training.coordinator.measuring import Measuring
from training.coordinator.ports import Clock
from training.rounds import events
from training.rounds.membership import checkpoint_to_load, group_for_newcomer
from training.rounds.state import NO_ROUND, Finished
from training.strategies.port import Group, RoundNumber
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.port import Session
from training.transport.relay import Relay
from training.transport.wire import PING, RELAY, Answered, AnyMethod, Question

_OUTSIDE_CALLS = (
    *(calls.GET_MEMBERS.name, calls.REPORT.name, calls.GET_BYTES.name),
    *(RELAY.name, PING.name),
)


class Handlers:
    """The methods that a coordinator serves."""

    def __init__(
        self,
        job: JobJournal,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        measuring: Measuring,
        items: ItemRoutes,
        board: Board,
        blobs: Blobs,
        *,
        targets: Mapping[PeerId, Group],
        clock: Clock,
        welcome: Callable[[PeerId], None],
        why_idle: WhyIdle,
    ) -> None:
        """`welcome` is called for every peer that has joined or returned; see `Rebalancing`."""
        self._job, self._sessions, self._measuring = job, sessions, measuring
        self._items, self._board, self._blobs = items, board, blobs
        self._targets = targets
        self._clock, self._welcome, self._why_idle = clock, welcome, why_idle
        self.relay = Relay(sessions, calls.RELAYED, self._authorize_relay)
        self.roster: dict[SessionKey, Signed[LeaseAccept]] = {}

    def dispatcher(self) -> Dispatcher:
        """A handler of all of them."""
        dispatcher = Dispatcher(job=self._job.record_of_job.job, authorize=self._authorize)
        dispatcher.on(calls.JOIN, self.join)
        dispatcher.on(calls.LEAVE, self.leave)
        dispatcher.on(calls.REPORT, self.take_report)
        dispatcher.on(calls.GET_MEMBERS, self.get_members)
        dispatcher.on(calls.NEXT_ITEM, self.next_item)
        dispatcher.on(calls.GET_CLAIMS, self.get_claims)
        dispatcher.on(calls.HELD, self.held)
        dispatcher.on(calls.GET_BYTES, self._blobs.get)
        dispatcher.on(RELAY, self.relay.serve)
        return dispatcher

    def _authorize(self, caller: SessionKey, method: AnyMethod) -> None:
        if self._is_outside(caller):
            if method.name not in _OUTSIDE_CALLS:
                raise Forbidden(f"{method.name} is not for outside auditors")
        elif method.name not in (RELAY.name, PING.name):
            self._lease_of(caller)

    def _authorize_relay(self, caller: SessionKey, to: SessionKey, method: AnyMethod) -> None:
        members = {self._job.key_of(peer) for peer in self._job.state.members}
        is_audit = method.name in calls.FOR_AUDITORS and self._is_outside(caller)
        if not (is_audit or caller in members) or to not in members:
            raise Forbidden(f"{method.name} is not passed on between these two")

    def _is_outside(self, caller: SessionKey) -> bool:
        """Whether somebody may be drawn from outside, and does not work here."""
        is_listed = caller in self._listed_outside
        return is_listed and peer_id(caller) not in self._job.record_of_job.leases

    @cached_property
    def _listed_outside(self) -> frozenset[SessionKey]:
        return frozenset(each.session_key for each in self._job.record_of_job.outside.auditors)

    async def take_report(self, asked: Question[calls.Report]) -> Answered[calls.Done]:
        """An audit that was drawn is done.

        Raises:
            BadSignature, Malformed: not a report of the caller, with its leaves.
            Conflict: nobody asks for it (any more), or it does not follow from its distances.
            Equivocation: another one was handed in for the same draw.
        """
        if len(asked.tensors) != 2:
            raise Malformed("a report is a claim with its leaves")
        signed = expect(decode_signed(bytes(asked.tensors[0])), WorkClaim)
        leaves = decode_kept(bytes(asked.tensors[1]))
        if peer_id(asked.caller) != signed.message.peer or not isinstance(leaves, Leaves):
            raise Malformed("an auditor hands in one report, its own")
        self._job.take_report(signed, leaves.leaves, self._clock())
        return calls.Done(), ()

    def _lease_of(self, caller: SessionKey) -> LeaseAccept:
        """The lease under which `caller` may join: a sealed one, else one of the roster."""
        if lease := self._job.record_of_job.leases.get(peer_id(caller)):
            return lease
        if caller in self.roster:
            return self.roster[caller].message
        raise Forbidden("no lease of this job is known for this session key")

    # ----------------------------------------------------------------------------------- peers

    async def join(self, asked: Question[calls.Join]) -> Answered[calls.Joined]:
        """A peer comes, or comes back.

        Raises:
            Forbidden: its lease is not the one that the market has accepted.
            Conflict: the job is over, and it was not part of it; it is suspended; or it says that
                it has applied a seal that we have not given.
            Unavailable: it did not show in time how fast it is; or its account has no bond, or no
                limit, that suffices.
        """
        request = asked.request
        sent = [decode_signed(bytes(tensor)).message for tensor in asked.tensors]
        if sent != [self._lease_of(asked.caller)]:
            raise Forbidden("this is not the lease that the market has accepted")
        if request.applied > self._job.record_of_job.step:
            raise Conflict("a seal of this round was never given", step=request.applied)
        peer = peer_id(asked.caller)
        if peer in self._job.record_of_job.checking.convicts:
            raise Conflict("audits have found false work of this peer", suspended=True)
        if peer not in self._job.state.members:
            await self._admit(asked.caller, request)
        else:
            self._return(peer, request)
        member = self._job.state.members[peer]
        self._welcome(peer)
        every = self._job.record_of_job.spec.batch.checkpoint_every
        joined = calls.Joined(
            group=member.group,
            round=self._job.state.round,
            state_round=checkpoint_to_load(self._job.state, member.group, every),
            members=self._job.member_views(),
        )
        return joined, ()

    async def _admit(self, caller: SessionKey, request: calls.Join) -> None:
        """Take in a newcomer as soon as it has shown how fast it is."""
        peer, session = peer_id(caller), self._sessions().get(caller)
        if isinstance(self._job.state.phase, Finished):
            raise Conflict("the job has ended")
        if session is None:
            raise PeerUnreachable("the session has ended", node=caller.hex())
        if (why := self._why_idle(self._lease_of(caller).account)) is not None:
            raise Unavailable(f"its account is not given work now: {why}", why=why)
        before = self._job.group_before(peer)
        group = self._targets.get(peer, before)
        if group is None:
            group = group_for_newcomer(self._job.state, self._measuring.groups())
        if self._job.record_of_job.members.get(peer, group) != group:
            raise Unavailable("who leaves a group joins another one in the next round")
        rate = await self._measuring.rate_of(peer, session, group)
        if peer in self._job.state.members:  # by another call, meanwhile
            return self._return(peer, request)
        if isinstance(self._job.state.phase, Finished):
            raise Conflict("the job has ended")
        lease = self._lease_of(caller)
        joined = events.Joined(
            peer=peer,
            group=group,
            owner=lease.account,
            address=request.address,
            applied=RoundNumber(request.applied) if group == before else NO_ROUND,
            lease=lease.digest(),
            rate=rate,
            bandwidth=request.bandwidth,
            at=self._clock(),
        )
        if peer in self._job.record_of_job.leases:
            self._job.record(joined)  # it had left, and is back under the same lease
        else:
            self._job.record(joined, self.roster[caller])

    def _return(self, peer: PeerId, request: calls.Join) -> None:
        applied = RoundNumber(request.applied)
        self._job.record(events.Connected(peer, request.address, applied, self._clock()))

    async def get_members(self, asked: Question[calls.GetMembers]) -> Answered[calls.MembersView]:
        """Who the members are now."""
        return calls.MembersView(members=self._job.member_views()), ()

    async def leave(self, asked: Question[calls.Leave]) -> Answered[calls.Done]:
        """A peer wants to go; what it has done of this round is still claimed and merged.

        Raises:
            Conflict: it is no member (any more), and free to go.
        """
        peer = peer_id(asked.caller)
        self._job.record(events.LeaveAsked(peer, self._clock()))
        if peer not in self._job.state.members:
            raise Conflict("no member of this job")
        return calls.Done(), ()

    async def next_item(self, asked: Question[calls.NextItem]) -> Answered[calls.ItemTasks]:
        """Tasks, as soon as there are some, or none after a while.

        Raises:
            Conflict: it is no member (any more).
        """
        peer = self._member(asked.caller)
        return await self._items.next(peer, asked.request), ()

    async def get_claims(self, asked: Question[calls.GetClaims]) -> Answered[calls.Claims]:
        """What the round merges and who reduces what, as it comes; see `Board`.

        Raises:
            Conflict: it is no member (any more).
        """
        peer = self._member(asked.caller)
        group = self._job.state.members[peer].group
        return await self._board.get(peer, group, asked.request, self._sessions().get(asked.caller))

    async def held(self, asked: Question[calls.Held]) -> Answered[calls.Done]:
        """A member holds shards or buckets; what no claim of the round binds is passed over.

        Raises:
            Conflict: it is no member (any more).
        """
        peer = self._member(asked.caller)
        named = self._blobs.named(map(Digest, asked.request.digests))
        if asked.request.round == self._job.state.round and named:
            await self._job.record_soon(events.Held(peer, named, self._clock()))
        return calls.Done(), ()

    def _member(self, caller: SessionKey) -> PeerId:
        peer = peer_id(caller)
        if peer not in self._job.state.members:
            raise Conflict("no member of this job")
        return peer
