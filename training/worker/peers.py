"""The other members as a worker sees them: whom it trusts, where they are, what it gets from them.

Addresses come from the coordinator and are only hints; a peer's name is the digest of its key, so a
claim is checked with the key of whom it names; everything that is fetched is compared with a digest
that a leaf, a claim or a seal names, and its length is bounded before it is read.
"""

import asyncio
from collections.abc import Iterable, Sequence

from typing_extensions import Buffer

from contracts.terms import errors
from contracts.terms.digest import peer_id
from contracts.terms.history import Leaves, encode_kept
from contracts.terms.ids import MAX_PEERS, Digest, JobId, PeerId, SessionKey, StageIndex
from contracts.terms.messages import JobOpening, JobSpec
from contracts.terms.signatures import Signed, verify_session
from contracts.terms.work import Leaf, Sort, WorkClaim
from training.averaging.forms import Forms
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.reach import Reach
from training.transport.wire import KIB, MAX_ANSWER_BYTES, Answer, Method, Request, ask
from training.worker.patience import Patience

FETCH_PART = 300.0  # seconds for one shard or bucket, at most
FETCH_BOUNDARY = 20.0  # a holder that is silent has no session any more before that
FETCH_RANGE = 60.0  # for a range of a checkpoint
ASK_STATE = 30.0  # a member reads its checkpoint once before it answers
ASK = 10.0
NEXT = 60.0  # longer than the coordinator keeps a peer waiting
MOST_SEEN = 4 * MAX_PEERS  # members of now and before that are remembered
HEADERS = 64 * KIB  # of an answer beside its tensors, at most


class Peers:
    """Members of the job by peer id, and sessions to them."""

    def __init__(
        self, transport: Transport, spec: JobSpec, opening: JobOpening, tell: Tell
    ) -> None:
        self._transport, self._tell_rarely = transport, Rarely(tell)
        self.job = JobId(opening.job)
        self._reach = Reach(transport, opening.session_key, calls.RELAYED)
        self.forms = Forms(spec)
        # One who does not answer must leave the exchange time for whoever else can.
        self._part_within = min(FETCH_PART, spec.rules.exchange_timeout / 1000 / 4)
        self._always = frozenset({opening.session_key})
        self.outside: frozenset[SessionKey] = frozenset()
        self._members: dict[PeerId, calls.MemberView] = {}
        self._seen: dict[PeerId, calls.MemberView] = {}
        self._coordinator_key = opening.session_key
        transport.set_members(self._always)

    # ------------------------------------------------------------------------------------- whom

    def set_members(self, members: Iterable[calls.MemberView]) -> None:
        """Trust these beside the coordinator."""
        members = list(members)
        found = {peer_id(member.session_key): member for member in members}
        if found.keys() != self._members.keys():
            self._transport.set_members(self._always | {m.session_key for m in members})
        self._members = found
        is_too_much = len(self._seen) > MOST_SEEN
        self._seen = found if is_too_much else self._seen | found

    def trust_outside(self, auditors: Iterable[SessionKey]) -> None:
        """Also let these ask us for what they audit: outside auditors that may be drawn."""
        self.outside |= frozenset(auditors)
        self._always |= self.outside
        self._transport.set_members(
            self._always | {member.session_key for member in self._members.values()}
        )

    @property
    def _coordinator(self) -> Session:
        session = self._transport.sessions.get(self._coordinator_key)
        if session is None:
            raise errors.PeerUnreachable("no session with the coordinator")
        return session

    async def refresh(self) -> None:
        """Ask the coordinator who the members are now; raises Unavailable, Refused."""
        request = calls.GetMembers(job=self.job)
        self.set_members((await self.ask_coordinator(calls.GET_MEMBERS, request))[0].members)

    def mates(self, group: StageIndex) -> list[PeerId]:
        """The other members of a group, ascending."""
        own = self._transport.key
        found = (p for p, m in self._members.items() if m.group == group and m.session_key != own)
        return sorted(found)

    def verify(self, signed: Signed[WorkClaim]) -> None:
        """Check that a member of the group that a claim is about signed it.

        Also one that is gone since: a RoundClosed that is out names its claim all the same.

        Raises:
            PeerUnreachable: we know nobody of that name. BadSignature: somebody else signed it.
            Conflict: it is a member of another group.
        """
        peer = signed.message.peer
        if peer not in self._seen:
            raise errors.PeerUnreachable(f"{peer.hex()[:16]} was never a member", peer=peer.hex())
        verify_session(signed, self._seen[peer].session_key)
        if self._seen[peer].group != signed.message.group:
            raise errors.Conflict("a claim of a peer of another group", peer=peer.hex())

    async def greet(self, groups: Iterable[int]) -> None:
        """Open sessions to all members of these groups, as far as they are reached.

        Who restarts listens at another address than others know: over a session that it has opened
        they can ask it all the same.
        """
        wanted = set(groups)
        own = self._transport.key
        near = [m for m in self._members.values() if m.group in wanted and m.session_key != own]
        await asyncio.gather(*(self._greet(member) for member in near))

    async def _greet(self, member: calls.MemberView) -> None:
        try:
            await self._session(member, HEADERS)
        except errors.TallystickError as error:
            peer = peer_id(member.session_key)
            self._tell_rarely("not_greeted", peer=peer, code=error.code, reason=error.message)

    # ------------------------------------------------------------------------------------- bytes

    async def fetch(
        self,
        digest: Digest,
        sort: Sort,
        holders: Iterable[PeerId],
        *,
        most_bytes: int | None = None,
        patience: Patience | None = None,
    ) -> Buffer:
        """Bytes from their holders, in the order of `patience`, compared with their digest.

        Args:
            digest: What they are called.
            sort: What they spell.
            holders: Whom to ask.
            most_bytes: How long they may be, where more is known than the sort.
            patience: Of the auditor that needs them.

        Raises:
            NotFound: no holder that is a member has them. Unavailable: one of them is not reached.
        """
        patience, wanted = patience or Patience(), list(holders)
        most_bytes = most_bytes or self.forms.most_bytes(sort)
        within = self._part_within if sort == "part" else FETCH_BOUNDARY
        if not self._members.keys() >= set(wanted):
            await self.refresh()
        unreached = False
        for peer in patience.order(each for each in wanted if each in self._members):
            if not patience.is_left_for(peer):
                unreached = True
                continue
            try:
                with patience.waiting_for(peer):
                    session = await self._session(self._members[peer], most_bytes + HEADERS)
                    return await self._fetched(session, digest, sort, most_bytes, within)
            except errors.TallystickError as error:  # the next holder may have it
                unreached |= isinstance(error, errors.Unavailable)
                about = {"peer": peer, "code": error.code, "reason": error.message}
                self._tell_rarely("not_fetched", digest=digest, **about)
        if unreached:
            raise errors.Unavailable("holders of some bytes are not reached", digest=digest.hex())
        raise errors.NotFound("nobody has these bytes any more", digest=digest.hex())

    async def _fetched(
        self, session: Session, digest: Digest, sort: Sort, most_bytes: int, deadline: float
    ) -> Buffer:
        request = calls.GetBytes(job=self.job, digest=digest)
        _, tensors = await ask(
            session,
            calls.GET_BYTES,
            request,
            deadline=deadline,
            answer_bytes=most_bytes + HEADERS,
        )
        if len(tensors) != 1 or tensors[0].nbytes > most_bytes:
            raise errors.Malformed("not one tensor of the length that it may have")
        await asyncio.to_thread(self.forms.need, sort, tensors[0], digest)
        return tensors[0]

    async def find(self, digest: Digest, sort: Sort, *, most_bytes: int | None = None) -> Buffer:
        """Bytes from the coordinator, which asks all that may have them.

        Raises:
            NotFound: nothing fitting came. Unavailable: it is looking, or not reached.
            Conflict: we are not asked for them (any more).
        """
        most = most_bytes or self.forms.most_bytes(sort)
        return await self._fetched(self._coordinator, digest, sort, most, calls.LONGEST_SEARCH)

    # ----------------------------------------------------------------------------- the coordinator

    async def ask_coordinator(
        self,
        method: Method[Request, Answer],
        request: Request,
        tensors: Sequence[bytes] = (),
        *,
        deadline: float = ASK,
    ) -> tuple[Answer, tuple[memoryview, ...]]:
        """Its answer; raises Unavailable, Refused."""
        return await ask(self._coordinator, method, request, tensors, deadline=deadline)

    async def report(self, claim: Signed[WorkClaim], leaves: tuple[Leaf, ...]) -> None:
        """Hand a report of ours to the coordinator.

        Raises:
            Conflict: it is not wanted. Unavailable: the coordinator is not reached.
        """
        tensors = [claim.encoded(), encode_kept(Leaves(claim.message.digest(), leaves))]
        await self.ask_coordinator(calls.REPORT, calls.Report(job=self.job), tensors)

    # ------------------------------------------------------------------------------------- files

    async def view(self, peer: PeerId, method: Method[Request, Answer], request: Request) -> Answer:
        """What a member says of one of its files; raises NotFound, Unavailable."""
        session = await self._session(self._member(peer), HEADERS)
        view, _ = await ask(session, method, request, deadline=ASK_STATE)
        return view

    async def range(
        self, peer: PeerId, method: Method[Request, calls.Done], request: Request, size: int
    ) -> bytes:
        """`size` bytes of one of its files; raises NotFound, Unavailable, Malformed."""
        session = await self._session(self._member(peer), size + HEADERS)
        _, tensors = await ask(session, method, request, deadline=FETCH_RANGE)
        if len(tensors) != 1 or tensors[0].nbytes != size:
            raise errors.Malformed(f"not one tensor of {size} bytes")
        return bytes(tensors[0])

    # ----------------------------------------------------------------------------------- sessions

    def _member(self, peer: PeerId) -> calls.MemberView:
        if peer not in self._members:
            raise errors.PeerUnreachable(f"{peer.hex()[:16]} is no member", peer=peer.hex())
        return self._members[peer]

    async def _session(
        self, member: calls.MemberView, answer_bytes: int = MAX_ANSWER_BYTES
    ) -> Session:
        return await self._reach.session(
            member.session_key, member.address, answer_bytes=answer_bytes
        )
