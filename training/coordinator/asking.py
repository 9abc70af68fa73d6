"""What the coordinator asks of its members: one task a member, each doing what the state owes it.

A task remembers nothing: it asks `duty_of` what comes next, calls, and records the answer. A call
that fails is simply still owed. So a member that returns, or a coordinator that restarts, goes on
where the journal is.
"""

from collections.abc import Awaitable, Callable

from contracts.terms.errors import Malformed, Misbehaved, Refused, Unavailable
from contracts.terms.history import Leaves, decode_kept
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import AveragedChunk, GradCommit, Message
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect
from training.coordinator.acceptance import check_chunk, check_commit
from training.coordinator.answers import member_views
from training.coordinator.book import Book
from training.coordinator.ports import Clock, StepReport
from training.swarm.duties import (
    ApplySeal,
    Commit,
    Duty,
    FetchParts,
    SumChunks,
    all_applied,
    duty_of,
)
from training.swarm.events import (
    ChunkAveraged,
    GradCommitted,
    PartsHeld,
    SealApplied,
    UnitsLacked,
)
from training.telling import Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask

Pause = Callable[[float], Awaitable[None]]

RETRY = 0.2  # seconds between two tries of a call that failed
LONGEST_CALL = 600.0
SHORTEST_CALL = 1.0


class Asking:
    """Calls to one member after the other's answer."""

    def __init__(
        self, book: Book, transport: Transport, *, clock: Clock, tell: Tell, pause: Pause
    ) -> None:
        self._book, self._transport = book, transport
        self._clock, self._tell, self._pause = clock, tell, pause

    async def serve(self, peer: PeerId) -> None:
        """Do for `peer` whatever is owed to it, for ever; cancelled when the job is over."""
        key = self._book.key_of(peer)
        while True:
            seen = self._book.changes.version
            duty, session = duty_of(self._book.state, peer), self._transport.sessions.get(key)
            if duty is None or session is None:
                await self._book.changes.beyond(seen)
            elif not await self._try(peer, session, duty):
                await self._pause(RETRY)

    async def _try(self, peer: PeerId, session: Session, duty: Duty) -> bool:
        """Whether the member has done its duty, as far as it could."""
        try:
            return await self._do(peer, session, duty)
        except (Unavailable, Refused, Misbehaved) as error:
            self._tell(
                "call_failed",
                step=self._book.state.step,
                peer=peer,
                duty=type(duty).__name__,
                code=error.code,
                reason=error.message,
            )
            return False

    async def _do(self, peer: PeerId, session: Session, duty: Duty) -> bool:
        match duty:
            case ApplySeal(step):
                return await self._hand_seal(peer, session, step)
            case Commit():
                return await self._ask_commit(peer, session)
            case FetchParts():
                return await self._ask_parts(peer, session, duty)
            case SumChunks():
                return await self._ask_chunks(peer, session, duty)

    def _time_left(self) -> float:
        ends: UnixMillis | None = getattr(self._book.state.phase, "ends", None)
        left = LONGEST_CALL if ends is None else (ends - self._clock()) / 1000
        return min(LONGEST_CALL, max(SHORTEST_CALL, left))

    async def _hand_seal(self, peer: PeerId, session: Session, step: StepNumber) -> bool:
        answer, _ = await ask(
            session,
            calls.TAKE_SEAL,
            calls.TakeSeal(
                members=member_views(self._book), all_applied=all_applied(self._book.state)
            ),
            self._book.items_of(step),
            deadline=LONGEST_CALL,
        )
        if answer.step != step:
            raise Malformed(f"a receipt for step {answer.step} instead of {step}")
        self._book.record(SealApplied(peer, step, self._clock()))
        if answer.validation_loss is not None:
            self._note_validation(step, answer.validation_loss)
        return True

    def _note_validation(self, step: StepNumber, loss: int) -> None:
        self._tell("validated", step=step, loss=loss)
        report = self._book.report_of(step)
        if report is not None and report.validation_millionths is None:
            self._book.add_report(
                StepReport(step, report.loss_millionths, report.tokens_per_second, report.at, loss)
            )

    async def _ask_commit(self, peer: PeerId, session: Session) -> bool:
        step = self._book.state.step
        answer, tensors = await ask(
            session,
            calls.CLOSE_STEP,
            calls.CloseStep(members=member_views(self._book)),
            [self._book.signed_close().encoded()],
            deadline=self._time_left(),
        )
        if answer.lacks:
            places = tuple((place.stage, place.unit) for place in answer.lacks)
            return self._book.record(UnitsLacked(step, peer, places, self._clock()))
        if len(tensors) % 2:
            raise Malformed("GradCommits come in pairs with their leaves")
        pairs = zip(tensors[::2], tensors[1::2], strict=True)
        return any([self._take_commit(peer, bytes(a), bytes(b)) for a, b in pairs])

    def _take_commit(self, peer: PeerId, commit: bytes, leaves: bytes) -> bool:
        signed, item = expect(decode_signed(commit), GradCommit), decode_kept(leaves)
        if not isinstance(item, Leaves) or signed.message.peer != peer:
            raise Malformed("a GradCommit of its sender, and its leaves, were asked for")
        name = signed.message.digest()
        if self._book.signed_commits([name]):
            return False  # known; the next one may be new
        check_commit(self._book.record_of_job, signed.message, item.leaves)
        units = tuple(leaf.unit for leaf in item.leaves)
        kept = Signed[Message](signed.message, signed.signature)
        return self._book.record(GradCommitted(signed.message, units, self._clock()), kept, item)

    async def _ask_parts(self, peer: PeerId, session: Session, duty: FetchParts) -> bool:
        step = self._book.state.step
        names = {name for name, _ in duty.parts}
        answer, _ = await ask(
            session,
            calls.FETCH_PARTS,
            calls.FetchParts(
                members=member_views(self._book),
                parts=tuple(
                    calls.PartName(grad_commit=name, chunk=chunk) for name, chunk in duty.parts
                ),
            ),
            [signed.encoded() for signed in self._book.signed_commits(names)],
            deadline=self._time_left(),
        )
        held = {(part.grad_commit, part.chunk) for part in answer.parts}
        parts = tuple(part for part in duty.parts if part in held)
        return bool(parts) and self._book.record(PartsHeld(step, peer, parts, self._clock()))

    async def _ask_chunks(self, peer: PeerId, session: Session, duty: SumChunks) -> bool:
        names: list[Digest] = [member.grad_commit for member in duty.average.members]
        commits = self._book.signed_commits(names)
        _, tensors = await ask(
            session,
            calls.SUM_CHUNKS,
            calls.SumChunks(
                members=member_views(self._book),
                chunks=tuple(chunk for _, chunk in duty.chunks),
            ),
            [self._book.signed_average().encoded(), *(each.encoded() for each in commits)],
            deadline=self._time_left(),
        )
        return any([self._take_chunk(peer, duty, bytes(tensor)) for tensor in tensors])

    def _take_chunk(self, peer: PeerId, duty: SumChunks, data: bytes) -> bool:
        signed = expect(decode_signed(data), AveragedChunk)
        chunk = signed.message
        if chunk.peer != peer or (chunk.stage, chunk.chunk) not in duty.chunks:
            raise Malformed("a mean that its sender was not asked for")
        commits = [each.message for each in self._book.pending(GradCommit)]
        check_chunk(chunk, duty.average, commits)
        kept = Signed[Message](chunk, signed.signature)
        return self._book.record(ChunkAveraged(chunk, self._clock()), kept)
