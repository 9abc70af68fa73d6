"""What an auditor lacks: asked of every holder, handed on, or said to be missing.

A Notice `missing_data` makes a report `missing` count (docs/protocol.md 5), and is given when

- the auditor whose turn it is has asked for bytes that its subject binds,
- a step was sealed since it first asked, and again nothing fitting came from any holder,
- every holder that is a member was reached and has said no, or `commit_timeout` has passed.

The digest binds, so it does not matter who serves: who did the work, sent, received, summed, or has
audited it before. While an auditor waits for us no deadline of its passes (`drawing`), for at most
twice `commit_timeout` and our two searches: holders that are silent would outlast it.
Only what is searched for is remembered here; a coordinator that starts again begins its searches
again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import Buffer

from contracts.governance.checking import Late
from contracts.terms import errors
from contracts.terms.digest import peer_id, tensor_digest
from contracts.terms.ids import ChunkIndex, Digest, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.messages import GradCommit, Notice, TensorHeader, UnitLeaf
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect
from training.averaging.slices import need_digest
from training.coordinator.book import Book
from training.coordinator.ports import Clock
from training.swarm.events import NoticeDue
from training.telling import Tell
from training.transport import calls
from training.transport.dispatch import Tensors
from training.transport.port import Session
from training.transport.wire import ask
from training.worker.sealed import SealedCommit


@dataclass(frozen=True)
class Lack:
    """Bytes that an auditor cannot get, and whose audit they are of."""

    subject: Digest
    stage: StageIndex
    doer: PeerId  # who did the work or the sum, so has held them
    holders: tuple[PeerId, ...]  # the doer last: it gains by delay
    request: calls.GetTensor | calls.GetPart
    digest: Digest


@dataclass(frozen=True)
class Search:
    """Since when an auditor asks us, and in which step we first found nothing."""

    at: UnixMillis
    step: StepNumber | None = None


class Finding:
    """The searches of one job."""

    def __init__(
        self,
        book: Book,
        sessions: Callable[[], Mapping[SessionKey, Session]],
        *,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self._book, self._sessions = book, sessions
        self._clock, self._tell = clock, tell
        self._searches: dict[tuple[Digest, PeerId], Search] = {}  # by subject and auditor
        self._noticed: set[Digest] = set()
        self._turns: defaultdict[PeerId, asyncio.Lock] = defaultdict(asyncio.Lock)

    # --------------------------------------------------------------------- what deadlines look at

    @property
    def _grace(self) -> int:
        return self._book.record_of_job.spec.rules.commit_timeout

    @property
    def waits(self) -> bool:
        """Whether a search can only go on in a later step."""
        return any(search.step == self._book.state.step for search in self._searches.values())

    def excuses(self, late: Late) -> bool:
        """Whether an auditor waits for us, or for what we have just said.

        It audits one thing after another, so all its reports have to wait.
        """
        return any(auditor == late.auditor for _, auditor in self._searches)

    @property
    def longest_excuse(self) -> int:
        """Milliseconds that one report may wait for us: all holders are asked twice."""
        return 2 * (self._grace + round(1000 * calls.LONGEST_SEARCH))

    def forget_others(self, awaited: Iterable[Late]) -> None:
        """Only for these reports anybody looks."""
        names = {(each.subject, each.auditor) for each in awaited}
        self._searches = {name: each for name, each in self._searches.items() if name in names}

    # --------------------------------------------------------------------------------- an auditor

    async def find(
        self, caller: SessionKey, request: calls.Find, _tensors: Tensors
    ) -> tuple[calls.Done, Sequence[Buffer]]:
        """Bytes that an auditor lacks.

        Raises:
            Conflict: they are of no audit that the caller owes.
            Unavailable: nothing came yet. NotFound: nothing came, and a Notice says so.
        """
        if request.job != self._book.record_of_job.job:
            raise errors.Conflict("another job")
        auditor = peer_id(caller)
        async with self._turns[auditor]:  # one answer at a time is in our memory for each
            lack = self._lack(auditor, request.digest)
            name = (lack.subject, auditor)
            search = self._searches.setdefault(name, Search(self._clock()))
            found, is_sure = await self._from_holders(lack)
            if found is None:
                raise self._missing(auditor, lack, search, is_sure=is_sure)
            if search.step is None:  # it goes on, and its time with it
                self._searches.pop(name, None)
            self._tell("data_found", step=self._book.state.step, peer=auditor)
            return calls.Done(), found

    def _lack(self, auditor: PeerId, digest: Digest) -> Lack:
        for late in self._book.record_of_job.checking.awaited():
            if late.auditor == auditor and (lack := self._lack_of(late.subject, digest)):
                others = [peer for peer in (*lack.holders, *late.heard) if peer != lack.doer]
                return replace(lack, holders=tuple(dict.fromkeys((*others, lack.doer))))
        raise errors.Conflict("nobody asks for an audit that needs this", digest=digest.hex())

    def _lack_of(self, subject: Digest, digest: Digest) -> Lack | None:
        work = self._book.sealed_work
        if (mean := work.find_mean(subject)) is not None:
            commits, doer, stage = mean.commits, mean.chunk.peer, mean.chunk.stage
            parts = [(commit, mean.chunk.chunk) for commit in commits]
            return self._part(subject, stage, doer, parts, digest)
        if (sealed := work.find_work(subject)) is None:
            return None
        commit = sealed.commit
        for leaf in sealed.leaves:
            if digest in (leaf.x, leaf.y, leaf.dy, leaf.dx):
                return self._tensor(subject, sealed, leaf, digest)
        parts = [(commit, part.chunk) for part in commit.parts]
        return self._part(subject, commit.stage, commit.peer, parts, digest)

    def _tensor(
        self, subject: Digest, sealed: SealedCommit, leaf: UnitLeaf, digest: Digest
    ) -> Lack:
        """A boundary tensor: whoever worked on its unit here or next door may hold it."""
        commit = sealed.commit
        stages = (commit.stage - 1, commit.stage, commit.stage + 1)
        holders = self._book.sealed_work.doers(commit.step, stages, leaf.unit)
        request = calls.GetTensor(job=commit.job, step=commit.step, digest=digest)
        return Lack(subject, commit.stage, commit.peer, holders, request, digest)

    def _part(
        self,
        subject: Digest,
        stage: StageIndex,
        doer: PeerId,
        parts: Iterable[tuple[GradCommit, ChunkIndex]],
        digest: Digest,
    ) -> Lack | None:
        """A part of a gradient: its owner, and whoever sums or takes over its chunk."""
        chunking = self._book.record_of_job.spec.chunking
        for commit, number in parts:
            if number < len(commit.parts) and commit.parts[number].digest == digest:
                name = calls.PartName(grad_commit=commit.digest(), chunk=number)
                stages = chunking.stages_beside(commit.stage, number)
                members = self._book.state.members.values()
                near = (each.peer for each in members if each.stage in stages)
                holders = (commit.peer, *near)
                return Lack(subject, stage, doer, holders, calls.GetPart(part=name), digest)
        return None

    # ---------------------------------------------------------------------------------- the holders

    async def _from_holders(self, lack: Lack) -> tuple[Sequence[Buffer] | None, bool]:
        """What fits, else None; and whether every holder that is a member has said no."""
        holders = [peer for peer in lack.holders if peer in self._book.state.members]
        span, is_sure = calls.LONGEST_SEARCH / (len(holders) + 1), True
        for peer in holders:
            try:
                return await self._ask(peer, lack, span), True
            except (errors.Unavailable, errors.Refused, errors.Misbehaved) as error:
                is_sure &= not isinstance(error, errors.Unavailable)
                about = {"peer": peer, "code": error.code, "reason": error.message}
                self._tell("not_found", step=self._book.state.step, **about)
        return None, is_sure

    async def _ask(self, peer: PeerId, lack: Lack, span: float) -> Sequence[Buffer]:
        session = self._sessions().get(self._book.key_of(peer))
        if session is None:
            raise errors.PeerUnreachable("the peer has no session", peer=peer.hex())
        if isinstance(lack.request, calls.GetTensor):
            _, tensors = await ask(session, calls.GET_TENSOR, lack.request, deadline=span)
            await asyncio.to_thread(_need_tensor, tensors, lack.digest)
        else:
            _, tensors = await ask(session, calls.GET_PART, lack.request, deadline=span)
            codec = self._book.record_of_job.spec.rules.gradient_codec
            data = tensors[0] if tensors else b""
            await asyncio.to_thread(need_digest, data, lack.digest, codec)
        return tensors

    # ----------------------------------------------------------------------------------- the Notice

    def _missing(
        self, auditor: PeerId, lack: Lack, search: Search, *, is_sure: bool
    ) -> errors.Unavailable | errors.NotFound:
        """What to answer when nothing came; NotFound only with a Notice that says so."""
        now, step = self._clock(), self._book.state.step
        if search.step is None:
            search = Search(search.at, step)
            self._searches[lack.subject, auditor] = search
        is_over = is_sure or now - search.at >= self._grace
        if search.step == step or not is_over:
            return errors.Unavailable("its holders are asked again in the next step")
        if not self._is_noticed(lack.subject):
            event = NoticeDue("missing_data", lack.doer, lack.stage, lack.subject, now)
            if not self._book.record(event):
                return errors.Unavailable("no Notice can be given now")
            self._noticed.add(lack.subject)
            self._tell("data_missing", step=step, peer=lack.doer, subject=lack.subject)
        return errors.NotFound("nothing fitting came from any holder", digest=lack.digest.hex())

    def _is_noticed(self, subject: Digest) -> bool:
        pending = (each.message for each in self._book.pending(Notice))
        said = {each.evidence for each in pending if each.what == "missing_data"}
        return subject in self._noticed | said


def _need_tensor(tensors: Sequence[Buffer], digest: Digest) -> None:
    """Refuse a boundary tensor that is not what a leaf names; its header may be anybody's."""
    if len(tensors) != 2:
        raise errors.Malformed("a boundary tensor comes with its header")
    header = expect(decode_signed(bytes(tensors[0])), TensorHeader).message
    actual = tensor_digest(header.dtype, header.shape, tensors[1])
    if actual != digest:
        raise errors.WrongBytes("another tensor", expected=digest.hex(), actual=actual.hex())
