"""What the coordinator asks of its members: one task a member, each doing what the state owes it.

A task remembers nothing: it asks `duties_of` what comes next, calls, and records the answer. A call
that fails is simply still owed. So a member that returns, or a coordinator that restarts, goes on
where the journal is.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from contracts.terms import errors
from contracts.terms.auditors import AuditorList
from contracts.terms.chunks import Chunk
from contracts.terms.digest import peer_id
from contracts.terms.history import Leaves, decode_kept
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StepNumber
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    UnitLeaf,
)
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect, verify_session
from training.averaging.norms import need_norm
from training.averaging.slices import need_digest, need_elements
from training.backoff import Backoff
from training.coordinator.acceptance import check_chunk, check_commit
from training.coordinator.book import Book
from training.coordinator.links import (
    Difference,
    OwnFault,
    Verdict,
    check_header,
    first_difference,
    judge,
)
from training.coordinator.means import Means
from training.coordinator.ports import Clock
from training.swarm import events
from training.swarm.duties import (
    ApplySeal,
    Commit,
    Duty,
    FetchParts,
    HoldChunks,
    SumChunks,
    all_applied,
    duties_of,
)
from training.swarm.securing import held_by_one, is_waited_for
from training.swarm.state import Averaging, Closed, Member, Part, Working
from training.telling import Rarely, Tell
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.wire import ask

Pause = Callable[[float], Awaitable[None]]

RETRY, LONGEST_RETRY = 0.2, 5.0  # seconds between two tries of a call that failed
LONGEST_CALL = 600.0
MAX_FAILED_SUMS = 4  # tries of one peer before another one sums
SUMMERS = 3  # peers that may let a call for sums time out before its deadline
SHARE_OF_TAKER = 3 / 8
"""Of the exchange timeout, for a call that brings a mean before its seal."""
MOST_BROUGHT = 8
"""How often a member is brought the same mean: before its seal once, the rest after it."""
FETCH = 60.0  # seconds for one tensor or part, if its step waits that long
SHORTEST_CALL = 1.0


class Asking:
    """Calls to one member after the other's answer."""

    def __init__(
        self,
        book: Book,
        transport: Transport,
        elements: Mapping[Chunk, int],
        means: Means,
        *,
        clock: Clock,
        tell: Tell,
        pause: Pause,
    ) -> None:
        self._book, self._transport, self._elements = book, transport, elements
        self._means = means
        self._clock, self._tell, self._pause = clock, tell, pause
        self._tell_rarely = Rarely(tell)
        self._failed_sums: Counter[tuple[StepNumber, PeerId]] = Counter()  # of the step in work
        self._brought: Counter[tuple[StepNumber, PeerId, Digest]] = Counter()  # of open steps
        self._duties = book.state, duties_of(book.state)

    async def serve(self, peer: PeerId) -> None:
        """Do for `peer` whatever is owed to it, for ever; cancelled when the job is over."""
        key = self._book.key_of(peer)
        failed: Duty | None = None
        backoff = Backoff(RETRY, LONGEST_RETRY)
        while True:
            seen = self._book.changes.version
            duty, session = self._duty_of(peer), self._transport.sessions.get(key)
            if duty is None or session is None:
                await self._book.changes.beyond(seen)
            elif not await self._try(peer, session, duty):
                if duty != failed:
                    backoff.begin()
                failed = duty
                await self._pause_or_news(backoff.next())

    async def _pause_or_news(self, span: float) -> None:
        """Less than that if who is here has changed: what failed may go well now."""
        here, pausing = self._here(), asyncio.ensure_future(self._pause(span))
        try:
            while not pausing.done() and self._here() == here:
                news = asyncio.ensure_future(self._book.changes.beyond(self._book.changes.version))
                await asyncio.wait({pausing, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
        finally:
            pausing.cancel()

    def _here(self) -> set[PeerId]:
        members = self._book.state.members.items()
        return {peer for peer, member in members if member.is_here}

    def _duty_of(self, peer: PeerId) -> Duty | None:
        """Every change wakes every member's task: what all of them owe is found out once."""
        of, duties = self._duties
        if of is not self._book.state:
            of, duties = self._duties = self._book.state, duties_of(self._book.state)
        return duties.get(peer)

    async def _try(self, peer: PeerId, session: Session, duty: Duty) -> bool:
        """Whether the member has done its duty, as far as it could."""
        try:
            is_done = await self._do(peer, session, duty)
            if not is_done and isinstance(duty, HoldChunks):
                self._note_failed_sum(peer, duty, None)
            return is_done
        except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
            self._tell_failed(peer, type(duty).__name__, error)
            if isinstance(duty, SumChunks | HoldChunks):
                self._note_failed_sum(peer, duty, error)
            return False

    def _note_failed_sum(
        self, peer: PeerId, duty: SumChunks | HoldChunks, error: errors.TallystickError | None
    ) -> None:
        """A summing peer that cannot sum, or does not answer, is replaced before the deadline.

        So that it is known when nobody can: also one that cannot come to what another has summed.
        """
        step = StepNumber(duty.average.step)
        self._failed_sums[step, peer] += 1
        for other in [name for name in self._failed_sums if name[0] != step]:
            del self._failed_sums[other]
        is_hopeless = self._failed_sums[step, peer] >= MAX_FAILED_SUMS
        if is_hopeless or isinstance(error, errors.DeadlineExceeded):
            self._book.record(events.PartsDenied(step, peer, self._clock()))

    def _tell_failed(self, peer: PeerId, duty: str, error: errors.TallystickError) -> None:
        self._tell_rarely(
            "call_failed",
            step=self._book.state.step,
            peer=peer,
            duty=duty,
            code=error.code,
            reason=error.message,
        )

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
            case HoldChunks():
                return await self._ask_to_hold(peer, session, duty)

    def _time_left(self) -> float:
        ends: UnixMillis | None = getattr(self._book.state.phase, "ends", None)
        left = LONGEST_CALL if ends is None else (ends - self._clock()) / 1000
        return min(LONGEST_CALL, max(SHORTEST_CALL, left))

    def _time_to_fetch(self) -> float:
        """So that who gives us nothing does not keep us from what its asker is owed next."""
        return min(FETCH, self._time_left())

    def _time_to_sum(self) -> float:
        return max(SHORTEST_CALL, self._book.state.terms.exchange_timeout / 1000 / SUMMERS)

    async def _hand_seal(self, peer: PeerId, session: Session, step: StepNumber) -> bool:
        items = self._book.items_of(step)
        request = calls.TakeSeal(
            members=self._book.member_views(), all_applied=all_applied(self._book.state)
        )
        try:
            answer, _ = await ask(session, calls.TAKE_SEAL, request, items, deadline=LONGEST_CALL)
        except (errors.Unavailable, errors.Refused, errors.Misbehaved):
            if session.closed or not await self._bring_kept(peer, session, items):
                raise
            answer, _ = await ask(session, calls.TAKE_SEAL, request, items, deadline=LONGEST_CALL)
        if answer.step != step:
            raise errors.Malformed(f"a receipt for step {answer.step} instead of {step}")
        before = all_applied(self._book.state)
        self._book.record(events.SealApplied(peer, step, self._clock()))
        if (applied := all_applied(self._book.state)) > before:
            self._brought = Counter({k: n for k, n in self._brought.items() if k[0] > applied})
            await self._means.drop(applied)
        return True

    async def _bring_kept(self, peer: PeerId, session: Session, items: Iterable[bytes]) -> bool:
        """Bring what the seal names and only one owner may hold; whether anything was taken."""
        if (member := self._book.state.members.get(peer)) is None:
            return False  # it has left meanwhile
        own, taken = self._book.record_of_job.spec.chunking.of_stage(member.stage), False
        for signed in map(decode_kept, items):
            if isinstance(signed, Leaves | AuditorList):
                continue
            mean = signed.message
            if not isinstance(mean, AveragedChunk) or _name(mean) not in own:
                continue
            times = self._brought[StepNumber(mean.step), peer, mean.digest()]
            if times < MOST_BROUGHT and (data := await self._means.kept(mean)) is not None:
                whole = Signed(mean, signed.signature)
                answer = await self._bring(peer, session, whole, data, LONGEST_CALL)
                taken = taken or bool(answer.chunks)
        return taken

    async def _bring(
        self,
        peer: PeerId,
        session: Session,
        signed: Signed[AveragedChunk],
        data: bytes,
        deadline: float,
    ) -> calls.ChunksHeld:
        mean, request = signed.message, calls.TakeChunk(members=self._book.member_views())
        self._brought[StepNumber(mean.step), peer, mean.digest()] += 1
        sent = [signed.encoded(), data]
        answer, _ = await ask(session, calls.TAKE_CHUNK, request, sent, deadline=deadline)
        return answer

    async def _ask_commit(self, peer: PeerId, session: Session) -> bool:
        step = self._book.state.step
        answer, tensors = await ask(
            session,
            calls.CLOSE_STEP,
            calls.CloseStep(members=self._book.member_views()),
            [self._book.signed_close().encoded()],
            deadline=self._time_left(),
        )
        if answer.lacks:
            places = tuple((place.stage, place.unit) for place in answer.lacks)
            return self._book.record(events.UnitsLacked(step, peer, places, self._clock()))
        reports, commits = tensors[: answer.num_reports], tensors[answer.num_reports :]
        if len(commits) % 2:
            raise errors.Malformed("GradCommits come in pairs with their leaves")
        for report in reports:
            self._take_report(peer, bytes(report))
        pairs = zip(commits[::2], commits[1::2], strict=True)
        return any([await self._take_commit(peer, bytes(a), bytes(b)) for a, b in pairs])

    def _take_report(self, peer: PeerId, data: bytes) -> None:
        signed = expect(decode_signed(data), AuditReport)
        if signed.message.auditor != peer:
            raise errors.Malformed("a peer names its own reports")
        self._book.take_report(signed, self._clock())

    async def _take_commit(self, peer: PeerId, commit: bytes, leaves: bytes) -> bool:
        signed, item = expect(decode_signed(commit), GradCommit), decode_kept(leaves)
        if not isinstance(item, Leaves) or signed.message.peer != peer:
            raise errors.Malformed("a GradCommit of its sender, and its leaves, were asked for")
        name = signed.message.digest()
        if self._book.signed_commits([name]):
            return False  # known; the next one may be new
        # Before anybody is judged by it: only what its peer has signed says anything.
        verify_session(signed, self._book.key_of(peer))
        held = [report.message.digest() for report in self._book.pending(AuditReport)]
        check_commit(self._book.record_of_job, signed.message, item.leaves, held)
        if not await self._links_hold(signed.message, item.leaves):
            return True  # what follows from that is somebody's duty
        units = tuple(leaf.unit for leaf in item.leaves)
        kept = Signed[Message](signed.message, signed.signature)
        return self._book.record(
            events.GradCommitted(signed.message, units, self._clock()), kept, item
        )

    async def _links_hold(self, commit: GradCommit, leaves: Sequence[UnitLeaf]) -> bool:
        """Whether leaves are the copies that count; records what follows if they are not."""
        match self._book.state.phase:
            case Working(draft) | Closed(draft):
                found = first_difference(draft.done, commit, leaves)
            case _:
                return True  # too late anyway
        if found is None:
            return True
        step, at = commit.step, self._clock
        verdict = await self._judge(found, step) if isinstance(found, Difference) else None
        stage, unit = found.place
        self._tell("link_differs", step=step, stage=stage, unit=unit, peer=commit.peer)
        match found, verdict:
            case Difference(sender=sender), Verdict.SENDER:
                self._book.record(events.LinkBroken(step, sender, at()))
            case Difference(receiver=receiver), Verdict.RECEIVER:
                self._book.record(events.LinkBroken(step, receiver, at()))
            case OwnFault(), _:
                self._book.record(events.LinkBroken(step, commit.peer, at()))
        # Whoever is left out: this peer has another copy than the one that counts.
        self._book.record(events.UnitsLacked(step, commit.peer, (found.place,), at()))
        return False

    async def _judge(self, difference: Difference, step: StepNumber) -> Verdict:
        """Let the receiver show the header of what it says it was sent.

        Raises:
            Unavailable: it cannot be asked now, so nobody is judged.
        """
        session = self._session(difference.receiver)
        request = calls.GetTensor(
            job=self._book.record_of_job.job, step=step, digest=difference.shown
        )
        try:
            deadline = self._time_to_fetch()
            _, tensors = await ask(session, calls.GET_TENSOR, request, deadline=deadline)
            header = check_header(bytes(tensors[0]), self._book.key_of(difference.sender))
        except (errors.Refused, errors.Misbehaved, IndexError):
            header = None
        return judge(difference, step, header)

    def _session(self, peer: PeerId) -> Session:
        session = self._transport.sessions.get(self._book.key_of(peer))
        if session is None:
            raise errors.PeerUnreachable("the peer has no session", peer=peer.hex())
        return session

    async def _ask_parts(self, peer: PeerId, session: Session, duty: FetchParts) -> bool:
        step = self._book.state.step
        answer, _ = await ask(
            session,
            calls.FETCH_PARTS,
            calls.FetchParts(members=self._book.member_views(), parts=_names(duty.parts)),
            [signed.encoded() for signed in self._commits_of(duty.parts)],
            deadline=self._time_left(),
        )
        held = self._note_held(step, peer, duty.parts, answer)
        if lacking := [part for part in duty.parts if part not in held]:
            held |= await self._relay(step, peer, session, lacking)
        return bool(held)

    def _commits_of(self, parts: Iterable[Part]) -> tuple[Signed[GradCommit], ...]:
        return self._book.signed_commits(name for name, _ in parts)

    def _note_held(
        self, step: StepNumber, peer: PeerId, asked: Iterable[Part], answer: calls.PartsHeld
    ) -> set[Part]:
        named = {(part.grad_commit, part.chunk) for part in answer.parts}
        held = tuple(part for part in asked if part in named)
        if held:
            self._book.record(events.PartsHeld(step, peer, held, self._clock()))
        return {*held}

    async def _relay(
        self, step: StepNumber, peer: PeerId, session: Session, lacking: Iterable[Part]
    ) -> set[Part]:
        """Bring a peer what it says it lacks; one that lacks it still is replaced, not the sender.

        A part that nobody gives us either stays missing, until the deadline finds its owner. One
        that has another norm than its owner bound, or another number of elements than its chunk, is
        no part: the owner is left out.
        """
        held: set[Part] = set()
        for part in lacking:
            if not self._is_wanted(step, peer, part):
                break  # the step has gone on meanwhile
            data = await self._fetch_part(part)
            if data is None:
                continue
            if (liar := await self._who_bound_another_size(part, data)) is not None:
                self._book.record(events.LinkBroken(step, liar, self._clock()))
                break
            # Its owner has served it: whoever lacks it at the deadline is to blame for that alone.
            own = peer_id(self._book.record_of_job.opening.session_key)
            self._book.record(events.PartsHeld(step, own, (part,), self._clock()))
            try:
                fresh = await self._hand_part(step, peer, session, part, data)
            except (errors.Refused, errors.Misbehaved) as error:
                self._tell_failed(peer, "TakeParts", error)
                fresh = set()
            if not fresh:
                self._book.record(events.PartsDenied(step, peer, self._clock()))
                break
            held |= fresh
        return held

    def _is_wanted(self, step: StepNumber, peer: PeerId, part: Part) -> bool:
        if self._book.state.step != step:
            return False
        duty = self._duty_of(peer)
        return isinstance(duty, FetchParts) and part in duty.parts

    async def _who_bound_another_size(self, part: Part, data: bytes) -> PeerId | None:
        """Its owner, if nobody can sum it: of another size, or of another norm than was bound."""
        for signed in self._commits_of([part]):
            commit, codec = signed.message, self._book.record_of_job.spec.rules.gradient_codec
            try:
                chunk = self._book.record_of_job.spec.chunking.of_stage(commit.stage)[part[1]]
                need_elements(data, self._elements[chunk], codec)
                # Megabytes of squares: not while everybody else waits for the loop.
                await asyncio.to_thread(need_norm, data, commit.parts[part[1]].norm_squared, codec)
            except errors.Misbehaved as error:
                self._tell_failed(commit.peer, "GradCommit", error)
                return commit.peer
        return None

    async def _hand_part(
        self, step: StepNumber, peer: PeerId, session: Session, part: Part, data: bytes
    ) -> set[Part]:
        commits = [signed.encoded() for signed in self._commits_of([part])]
        request = calls.TakeParts(
            members=self._book.member_views(), num_commits=len(commits), parts=_names([part])
        )
        answer, _ = await ask(
            session, calls.TAKE_PARTS, request, [*commits, data], deadline=self._time_left()
        )
        return self._note_held(step, peer, [part], answer)

    async def _fetch_part(self, part: Part) -> bytes | None:
        """A part from its owner, else from who may have it; with the bytes it bound."""
        commits = self._commits_of([part])
        if not commits:
            return None  # its step is over
        commit = commits[0].message
        name = calls.PartName(grad_commit=part[0], chunk=part[1])
        codec = self._book.record_of_job.spec.rules.gradient_codec
        for member in self._holders(commit, part[1]):
            try:
                session = self._session(member.peer)
                request = calls.GetPart(part=name)
                deadline = self._time_to_fetch()
                _, tensors = await ask(session, calls.GET_PART, request, deadline=deadline)
                data = bytes(tensors[0]) if tensors else b""
                need_digest(data, commit.parts[part[1]].digest, codec)
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                self._tell_failed(member.peer, "GetPart", error)
            else:
                return data
        return None

    def _holders(self, commit: GradCommit, number: ChunkIndex) -> list[Member]:
        chunking = self._book.record_of_job.spec.chunking
        stages = chunking.stages_beside(commit.stage, number)
        members = self._book.state.members.values()
        near = (member for member in members if member.stage in stages)
        return sorted(near, key=lambda member: (member.peer != commit.peer, member.peer))

    async def _ask_chunks(self, peer: PeerId, session: Session, duty: SumChunks) -> bool:
        _, tensors = await ask(
            session,
            calls.SUM_CHUNKS,
            calls.SumChunks(
                members=self._book.member_views(),
                chunks=tuple(chunk for _, chunk in duty.chunks),
            ),
            self._what_was_summed(duty.average),
            deadline=self._time_to_sum(),
        )
        if not tensors:
            raise errors.Malformed("no mean came back")
        return any([self._take_chunk(peer, duty, bytes(tensor)) for tensor in tensors])

    async def _ask_to_hold(self, peer: PeerId, session: Session, duty: HoldChunks) -> bool:
        """What it cannot fetch we bring, and keep; what a signer who is here gives to nobody is
        withdrawn.

        What is with somebody who is away it is asked to sum again. Who is not waited for is at once
        brought what it could hold up: means of one owner alone.
        """
        wanted = {*duty.chunks}
        alone = wanted & held_by_one(self._book.state)
        held, is_patient = set[Chunk](), is_waited_for(self._book.state, peer)
        if is_patient or not alone:
            held = await self._request_hold(peer, session, wanted, [])
        withheld, takes = list[AveragedChunk](), True
        for signed in self._averaged(wanted - held if is_patient else alone):
            if not self._means.is_current(signed.message):
                continue  # another one has found out meanwhile
            if (data := await self._means.fetch(signed.message)) is None:
                withheld.append(signed.message)
            elif takes and (takes := await self._hand_mean(peer, session, signed, data)):
                held.add(_name(signed.message))
        self._withdraw(each for each in withheld if each.peer in self._here())
        if lacking := wanted - held:
            parts = self._what_was_summed(duty.average)
            held |= await self._request_hold(peer, session, lacking, parts) if parts else set()
        self._withdraw(each for each in withheld if _name(each) not in held)
        return bool(held)

    def _withdraw(self, means: Iterable[AveragedChunk]) -> None:
        """Means that are nowhere; what two owners hold is not, somebody is only late with it."""
        by_signer: defaultdict[PeerId, list[AveragedChunk]] = defaultdict(list)
        for mean in means:
            if self._means.is_current(mean) and _name(mean) in held_by_one(self._book.state):
                by_signer[mean.peer].append(mean)
        for peer, own in by_signer.items():
            names = tuple(map(_name, own))
            self._book.record(events.MeansWithheld(own[0].step, peer, names, self._clock()))

    def _averaged(self, names: Collection[Chunk]) -> list[Signed[AveragedChunk]]:
        """What was signed as their means, as far as the step is not sealed meanwhile."""
        phase = self._book.state.phase
        averaged = phase.chunks if isinstance(phase, Averaging) else {}
        return [Signed(*averaged[name]) for name in sorted(names) if name in averaged]

    async def _hand_mean(
        self, peer: PeerId, session: Session, signed: Signed[AveragedChunk], data: bytes
    ) -> bool:
        """Whether it holds it now; once before a seal, after which `_bring_kept` goes on."""
        if self._brought[StepNumber(signed.message.step), peer, signed.message.digest()]:
            return False
        deadline = self._book.state.terms.exchange_timeout / 1000 * SHARE_OF_TAKER
        with self._failing(peer, session, "TakeChunk"):
            answer = await self._bring(peer, session, signed, data, max(SHORTEST_CALL, deadline))
            return bool(self._note_means(peer, answer, [signed]))
        return False

    @contextmanager
    def _failing(self, peer: PeerId, session: Session, duty: str) -> Iterator[None]:
        """An answer that is an error says as much as no answer, if the session lives on."""
        try:
            yield
        except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
            if session.closed:
                raise
            self._tell_failed(peer, duty, error)

    async def _request_hold(
        self, peer: PeerId, session: Session, wanted: set[Chunk], parts: Sequence[bytes]
    ) -> set[Chunk]:
        asked = self._averaged(wanted)
        if not asked:
            return set()  # sealed meanwhile
        named = [signed.encoded() for signed in asked]
        request = calls.HoldChunks(members=self._book.member_views(), num_chunks=len(named))
        with self._failing(peer, session, "HoldChunks"):
            answer, _ = await ask(
                session, calls.HOLD_CHUNKS, request, [*named, *parts], deadline=self._time_to_sum()
            )
            return self._note_means(peer, answer, asked)
        return set()

    def _note_means(
        self, peer: PeerId, answer: calls.ChunksHeld, asked: Sequence[Signed[AveragedChunk]]
    ) -> set[Chunk]:
        """Which of the means that it was asked for it holds; not what was signed there meanwhile:
        an answer that is late would count for a mean that nobody has."""
        said = {(each.stage, each.chunk) for each in answer.chunks}
        means = [each.message for each in asked if self._means.is_current(each.message)]
        held = {_name(mean) for mean in means} & said
        if held:
            step = means[0].step
            self._book.record(events.ChunksHeld(step, peer, tuple(sorted(held)), self._clock()))
        return held

    def _what_was_summed(self, average: AverageSet) -> list[bytes]:
        """The AverageSet and its GradCommits; nothing once they are sealed."""
        names: list[Digest] = [member.grad_commit for member in average.members]
        commits = self._book.signed_commits(names)
        if not commits:
            return []
        return [self._book.signed_average().encoded(), *(each.encoded() for each in commits)]

    def _take_chunk(self, peer: PeerId, duty: SumChunks, data: bytes) -> bool:
        signed = expect(decode_signed(data), AveragedChunk)
        chunk = signed.message
        if chunk.peer != peer or (chunk.stage, chunk.chunk) not in duty.chunks:
            raise errors.Malformed("a mean that its sender was not asked for")
        commits = [each.message for each in self._book.pending(GradCommit)]
        check_chunk(self._book.record_of_job.spec, chunk, duty.average, commits)
        verify_session(signed, self._book.key_of(peer))
        return self._book.record(events.ChunkAveraged(chunk, self._clock(), signed.signature))


def _name(mean: AveragedChunk) -> Chunk:
    return mean.stage, mean.chunk


def _names(parts: Iterable[Part]) -> tuple[calls.PartName, ...]:
    return tuple(calls.PartName(grad_commit=name, chunk=chunk) for name, chunk in parts)
