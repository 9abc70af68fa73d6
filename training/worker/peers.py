"""The other members as a worker sees them: whom it trusts, where they are, what it gets from them.

Addresses come from the coordinator and are only hints; keys are trusted because the coordinator
says so, and everything that is fetched is compared with a digest that its owner or a seal bound.
"""

from collections.abc import Iterable

from typing_extensions import Buffer

from contracts.terms.digest import peer_id
from contracts.terms.errors import PeerUnreachable, TallystickError, Unavailable
from contracts.terms.ids import ChunkIndex, Digest, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.messages import AveragedChunk, GradCommit, JobOpening
from contracts.terms.signatures import Signed, verify_session
from training.averaging.slices import need_digest
from training.telling import Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import Method, Request, ask

DIAL = 10.0  # seconds
FETCH = 300.0


class Peers:
    """Members of the job by peer id, and sessions to them."""

    def __init__(self, transport: Transport, opening: JobOpening, tell: Tell) -> None:
        self._transport, self._tell = transport, tell
        self._always = frozenset({opening.session_key, *opening.trainers})
        self._members: dict[PeerId, calls.MemberView] = {}
        transport.set_members(self._always)

    def set_members(self, members: Iterable[calls.MemberView]) -> None:
        """Trust these beside the coordinator and the trainers."""
        members = list(members)
        found = {peer_id(member.session_key): member for member in members}
        if found.keys() != self._members.keys():
            self._transport.set_members(self._always | {m.session_key for m in members})
        self._members = found

    def key_of(self, peer: PeerId) -> SessionKey:
        """A member's session key.

        Raises:
            PeerUnreachable: it is no member.
        """
        return self._member(peer).session_key

    def verify(self, signed: Signed[GradCommit]) -> None:
        """Check that a member signed its own GradCommit; raises BadSignature otherwise."""
        verify_session(signed, self.key_of(signed.message.peer))

    async def fetch_part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """A part from the owner of the GradCommit that bound it, else from whoever has it.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        name = calls.PartName(grad_commit=commit.digest(), chunk=chunk)
        digest, request = commit.parts[chunk].digest, calls.GetPart(part=name)
        holders = self._holders(commit.stage, first=commit.peer)
        return await self._from_any(holders, calls.GET_PART, request, digest, commit.step)

    async def fetch_chunk(self, chunk: AveragedChunk) -> bytes:
        """An averaged chunk from the peer that summed it, else from any member of the stage.

        Raises:
            Unavailable: nobody who is reached has it.
        """
        request = calls.GetChunk(step=chunk.step, stage=chunk.stage, chunk=chunk.chunk)
        holders = self._holders(chunk.stage, first=chunk.peer)
        digest = chunk.chunk_digest
        return await self._from_any(holders, calls.GET_CHUNK, request, digest, chunk.step)

    def _holders(self, stage: StageIndex, *, first: PeerId) -> list[calls.MemberView]:
        others = {
            peer: member
            for peer, member in self._members.items()
            if member.stage == stage and member.session_key != self._transport.key
        }
        return [others[peer] for peer in sorted(others, key=lambda peer: (peer != first, peer))]

    async def _from_any(
        self,
        holders: Iterable[calls.MemberView],
        method: Method[Request, calls.Done],
        request: Request,
        digest: Digest,
        step: StepNumber,
    ) -> bytes:
        for member in holders:
            try:
                session = await self._session(member)
                _, tensors = await ask(session, method, request, deadline=FETCH)
                return _checked(tensors, digest)
            except TallystickError as error:  # the next member may have it
                self._tell(
                    "not_fetched",
                    step=step,
                    method=method.name,
                    peer=peer_id(member.session_key),
                    code=error.code,
                    reason=error.message,
                )
        raise Unavailable(f"{method.name}: nobody who is reached has it", digest=digest.hex())

    def _member(self, peer: PeerId) -> calls.MemberView:
        if peer not in self._members:
            raise PeerUnreachable(f"{peer.hex()[:16]} is no member", peer=peer.hex())
        return self._members[peer]

    async def _session(self, member: calls.MemberView) -> Session:
        session = self._transport.sessions.get(member.session_key)
        if session is not None and not session.closed:
            return session
        if not member.address:
            raise PeerUnreachable("the peer has no address", node=member.session_key.hex())
        return await self._transport.dial(member.session_key, [member.address], deadline=DIAL)


def _checked(tensors: tuple[memoryview, ...], digest: Digest) -> bytes:
    data: Buffer = tensors[0] if tensors else b""
    need_digest(data, digest)
    return bytes(data)
