"""The other members as a worker sees them: whom it trusts, where they are, what it gets from them.

Addresses come from the coordinator and are only hints; keys are trusted because the coordinator
says so, and everything that is fetched is compared with a digest that its owner or a seal bound.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contracts.terms import errors
from contracts.terms.digest import peer_id
from contracts.terms.ids import (
    ChunkIndex,
    Digest,
    JobId,
    PeerId,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    GradCommit,
    JobOpening,
    JobSpec,
    Message,
    TensorHeader,
)
from contracts.terms.signatures import Signed, decode_signed, expect, verify_session
from training.averaging.slices import need_digest
from training.compression.formats import FORMATS
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.reach import Reach
from training.transport.wire import KIB, MAX_ANSWER_BYTES, Answer, Method, Request, ask
from training.worker.patience import Patience
from training.worker.tensors import Kept

FETCH = 300.0  # seconds for one part or mean, at most
FETCH_RANGE = 60.0  # for a range of a checkpoint
ASK_STATE = 30.0  # a member reads its checkpoint once before it answers
FETCH_TENSOR = 20.0  # a holder that is silent has no session any more before that
ASK = 10.0
NEXT = 60.0  # longer than the coordinator keeps a peer waiting
HEADERS = 64 * KIB  # of an answer beside its tensors, at most

Tensors = Sequence[memoryview]
CheckHeader: TypeAlias = Callable[[Signed[TensorHeader]], None]


@dataclass(frozen=True)
class _Missed:
    """No holder gave a tensor: some are not reached; we may not know who the members are now."""

    is_unreached: bool
    is_stale: bool


class Peers:
    """Members of the job by peer id, and sessions to them."""

    def __init__(
        self, transport: Transport, spec: JobSpec, opening: JobOpening, tell: Tell
    ) -> None:
        self._transport, self._tell_rarely = transport, Rarely(tell)
        self.job = JobId(opening.job)
        self._reach = Reach(transport, opening.session_key, calls.RELAYED)
        self._codec, self._chunking = spec.rules.gradient_codec, spec.chunking
        num_elements = spec.batch.rows_per_unit * spec.model.sequence_length * spec.model.width
        wire = FORMATS[spec.rules.boundary_codec]
        self._tensor_bytes = wire.num_bytes(num_elements)
        # One who does not answer must leave the exchange time for whoever else can.
        self._fetch_within = min(FETCH, spec.rules.exchange_timeout / 1000 / 4)
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
        self._seen = self._seen | found  # a new one: `need_sender` reads it in another thread

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
        answer, _ = await ask(self._coordinator, calls.GET_MEMBERS, request, deadline=ASK)
        self.set_members(answer.members)

    def mates(self, stage: StageIndex) -> list[PeerId]:
        """The other members of a stage, ascending."""
        own = self._transport.key
        found = (p for p, m in self._members.items() if m.stage == stage and m.session_key != own)
        return sorted(found)

    def verify(self, signed: Signed[GradCommit] | Signed[AveragedChunk]) -> None:
        """Check that a member signed its own GradCommit, or AveragedChunk.

        Also one that is gone since: an AverageSet that is out counts it all the same. Raises
        PeerUnreachable: we know nobody of that name. BadSignature: somebody else signed it.
        """
        peer = signed.message.peer
        if peer not in self._seen:
            raise errors.PeerUnreachable(f"{peer.hex()[:16]} was never a member", peer=peer.hex())
        verify_session(signed, self._seen[peer].session_key)

    def need_sender(self, signed: Signed[TensorHeader]) -> None:
        """Check that a member of the stage that it names signed a header.

        Also one that is gone since: what it sent is still good. Raises BadSignature otherwise.
        """
        for member in self._seen.values():
            if member.stage == signed.message.stage and _signed_by(signed, member.session_key):
                return
        raise errors.BadSignature(f"no member of stage {signed.message.stage} signed this header")

    async def greet(self, stages: Iterable[int]) -> None:
        """Open sessions to all members of these stages, as far as they are reached.

        Who restarts listens at another address than others know: over a session that it has opened
        they can ask it all the same.
        """
        wanted = set(stages)
        own = self._transport.key
        near = [m for m in self._members.values() if m.stage in wanted and m.session_key != own]
        await asyncio.gather(*(self._greet(member) for member in near))

    async def _greet(self, member: calls.MemberView) -> None:
        try:
            await self._session(member, HEADERS)
        except errors.TallystickError as error:
            peer = peer_id(member.session_key)
            self._tell_rarely("not_greeted", peer=peer, code=error.code, reason=error.message)

    # ----------------------------------------------------------------------- parts and averages

    async def fetch_part(
        self, commit: GradCommit, chunk: ChunkIndex, patience: Patience | None = None
    ) -> bytes:
        """A part from the owner of the GradCommit that bound it, else from whoever has it.

        Args:
            commit: That bound it.
            chunk: Which.
            patience: Of the auditor that needs it.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        name = calls.PartName(grad_commit=commit.digest(), chunk=chunk)
        digest, request = commit.parts[chunk].digest, calls.GetPart(part=name)
        stages = self._chunking.stages_beside(commit.stage, chunk)
        holders = self._holders(stages, first=commit.peer)
        return await self._from_any(
            holders, calls.GET_PART, request, digest, commit.step, patience or Patience()
        )

    async def fetch_chunk(self, chunk: AveragedChunk) -> bytes:
        """An averaged chunk from the peer that summed it, else from any member that applies it.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        request = calls.GetChunk(step=chunk.step, stage=chunk.stage, chunk=chunk.chunk)
        stages = self._chunking.stages_of((chunk.stage, chunk.chunk))
        holders = self._holders(stages, first=chunk.peer)
        digest = chunk.chunk_digest
        return await self._from_any(
            holders, calls.GET_CHUNK, request, digest, chunk.step, Patience()
        )

    def _holders(self, stages: Iterable[StageIndex], *, first: PeerId) -> list[PeerId]:
        near = [peer for stage in stages for peer in self.mates(stage)]
        return sorted(near, key=lambda peer: (peer != first, peer))

    async def _from_any(
        self,
        holders: Iterable[PeerId],
        method: Method[Request, calls.Done],
        request: Request,
        digest: Digest,
        step: StepNumber,
        patience: Patience,
    ) -> bytes:
        for peer in filter(patience.is_left_for, patience.order(holders)):
            try:
                with patience.waiting_for(peer):
                    _, tensors = await self._ask(peer, method, request, deadline=self._fetch_within)
                return await asyncio.to_thread(self._checked, tensors, digest)
            except errors.TallystickError as error:  # the next member may have it
                self._not_fetched(method.name, peer, step, error)
        raise errors.Unavailable(
            f"{method.name}: nobody who is reached has it", digest=digest.hex()
        )

    def _checked(self, tensors: Tensors, digest: Digest) -> bytes:
        data = _only(tensors)
        need_digest(data, digest, self._codec)
        return data

    # --------------------------------------------------------------------------- boundary tensors

    async def fetch_tensor(
        self,
        held: calls.Held,
        step: StepNumber,
        check: Callable[[TensorHeader], None],
        *,
        is_bound: bool = False,
        patience: Patience | None = None,
    ) -> Kept:
        """A boundary tensor from its holders, in their order.

        Args:
            held: Which, and who has it.
            step: Of the unit, or of the state that validation rows run through.
            check: Raises if the tensor is not what it should be.
            is_bound: A GradCommit has bound the digest, so it does not matter who signs for it.
            patience: Of the auditor that needs it.

        Raises:
            NotFound: no holder that is a member has it. Unavailable: one of them, or the
                coordinator, is not reached.
        """

        def check_sender(signed: Signed[TensorHeader]) -> None:
            check(signed.message)
            if not is_bound:
                self.need_sender(signed)

        found = await self._from_holders(held, step, check_sender, patience)
        if isinstance(found, _Missed) and found.is_stale:
            await self.refresh()
            found = await self._from_holders(held, step, check_sender, patience)
        if isinstance(found, Kept):
            return found
        digest = held.digest.hex()
        if found.is_unreached:
            raise errors.Unavailable(
                "the holders of a boundary tensor are not reached", digest=digest
            )
        raise errors.NotFound("nobody has this boundary tensor any more", digest=digest)

    async def _from_holders(
        self, held: calls.Held, step: StepNumber, check: CheckHeader, patience: Patience | None
    ) -> "Kept | _Missed":
        patience = patience or Patience()
        request = calls.GetTensor(job=self.job, step=step, digest=held.digest)
        known = [peer for peer in held.holders if peer in self._members]
        unreached, stale = False, len(known) < len(held.holders)
        for peer in patience.order(known):
            if not patience.is_left_for(peer):
                unreached = True
                continue
            try:
                with patience.waiting_for(peer):
                    _, tensors = await self._ask(
                        peer,
                        calls.GET_TENSOR,
                        request,
                        deadline=FETCH_TENSOR,
                        answer_bytes=self._tensor_bytes + HEADERS,
                    )
                return await asyncio.to_thread(self._checked_tensor, tensors, held.digest, check)
            except errors.TallystickError as error:  # the next holder may have it
                self._not_fetched(calls.GET_TENSOR.name, peer, step, error)
                stale |= isinstance(error, errors.BadSignature)
                unreached |= isinstance(error, errors.Unavailable)
        return _Missed(is_unreached=unreached, is_stale=stale)

    def _checked_tensor(self, tensors: Tensors, digest: Digest, check: CheckHeader) -> Kept:
        if len(tensors) != 2:
            raise errors.Malformed("a boundary tensor comes with its header")
        if tensors[1].nbytes > self._tensor_bytes:
            raise errors.Malformed(f"a boundary tensor of {tensors[1].nbytes} bytes")
        kept = Kept(expect(decode_signed(bytes(tensors[0])), TensorHeader), bytes(tensors[1]))
        header = kept.header.message
        if header.tensor_digest != digest or header.job != self.job:
            raise errors.Malformed("the header of another tensor, or of another job")
        check(kept.header)
        kept.check()
        return kept

    # ------------------------------------------------------------------------------------ reports

    async def report(self, signed: Signed[AuditReport]) -> None:
        """Hand a report of ours to the coordinator.

        Raises:
            Conflict: it is not wanted. Unavailable: the coordinator is not reached.
        """
        request = calls.Report(job=self.job)
        await ask(self._coordinator, calls.REPORT, request, [signed.encoded()], deadline=ASK)

    async def find_tensor(self, digest: Digest) -> Kept:
        """A boundary tensor that we have to audit, through the coordinator.

        Raises:
            NotFound: nothing fitting came for it either, and its Notice says so.
            Unavailable: it is looking, or not reached. Conflict: we are not asked (any more).
        """

        def check(_header: Signed[TensorHeader]) -> None:
            """A GradCommit binds the digest, so it does not matter who signs for it."""

        tensors = await self._find(digest)
        return await asyncio.to_thread(self._checked_tensor, tensors, digest, check)

    async def find_part(self, digest: Digest) -> bytes:
        """Wire bytes of a part of a gradient, the same way; raises as `find_tensor`."""
        return await asyncio.to_thread(self._checked, await self._find(digest), digest)

    async def _find(self, digest: Digest) -> Tensors:
        request, deadline = calls.Find(job=self.job, digest=digest), calls.LONGEST_SEARCH
        _, tensors = await ask(self._coordinator, calls.FIND, request, deadline=deadline)
        return tensors

    # -------------------------------------------------------------------------------------- work

    async def next_tasks(self, request: calls.NextItem) -> calls.ItemTasks:
        """Hand in what came of tasks, and hear of others; raises Unavailable, Refused."""
        method, deadline = calls.NEXT_ITEM, NEXT
        answer, _ = await ask(self._coordinator, method, request, deadline=deadline)
        return answer

    # ------------------------------------------------------------------------------------- files

    async def view(self, peer: PeerId, method: Method[Request, Answer], request: Request) -> Answer:
        """What a member says of one of its files; raises NotFound, Unavailable."""
        view, _ = await self._ask(peer, method, request, deadline=ASK_STATE, answer_bytes=HEADERS)
        return view

    async def range(
        self, peer: PeerId, method: Method[Request, calls.Done], request: Request, size: int
    ) -> bytes:
        """`size` bytes of one of its files; raises NotFound, Unavailable, Malformed."""
        _, tensors = await self._ask(
            peer, method, request, deadline=FETCH_RANGE, answer_bytes=size + HEADERS
        )
        data = _only(tensors)
        if len(data) != size:
            raise errors.Malformed(f"{len(data)} bytes instead of {size}")
        return data

    # ----------------------------------------------------------------------------------- sessions

    async def _ask(
        self,
        peer: PeerId,
        method: Method[Request, Answer],
        request: Request,
        *,
        deadline: float,
        answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> tuple[Answer, tuple[memoryview, ...]]:
        session = await self._session(self._member(peer), answer_bytes)
        return await ask(session, method, request, deadline=deadline)

    def _member(self, peer: PeerId) -> calls.MemberView:
        if peer not in self._members:
            raise errors.PeerUnreachable(f"{peer.hex()[:16]} is no member", peer=peer.hex())
        return self._members[peer]

    async def _session(self, member: calls.MemberView, answer_bytes: int) -> Session:
        return await self._reach.session(
            member.session_key, member.address, answer_bytes=answer_bytes
        )

    def _not_fetched(
        self, method: str, peer: PeerId, step: StepNumber, error: errors.TallystickError
    ) -> None:
        self._tell_rarely(
            "not_fetched",
            step=step,
            method=method,
            peer=peer,
            code=error.code,
            reason=error.message,
        )


def _signed_by(signed: Signed[Message], key: SessionKey) -> bool:
    try:
        verify_session(signed, key)
    except errors.BadSignature:
        return False
    return True


def _only(tensors: Tensors) -> bytes:
    if len(tensors) != 1:
        raise errors.Malformed(f"{len(tensors)} tensors instead of one")
    return bytes(tensors[0])
