"""A job as one of its auditors sees it: what seals hold, how to get the bytes, where reports go.

A member (`loop.MemberJob`) and an outside auditor (`outsider.OutsiderJob`) differ in where weights
come from, in what they compute with, and in how they reach the coordinator; all else stands here.

Data come from a member's own disk, then from any holder (in the order of
`training.worker.patience`), then from everybody, through the coordinator. A member stores the
tensors that it fetches for as long as its own work of that step: the peers that served them may be
gone before the next auditor asks.

Invariants: nothing that anybody served is believed without the digest or root that a sealed
GradCommit, or one of its leaves, names, so it does not matter who serves it; a report is on disk
before it is sent, and one draw gets one report, restarts included.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session as SessionKeys
from contracts.terms import errors
from contracts.terms.chunks import Chunk
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AuditReport, AverageSet, GradCommit, Message, TensorHeader
from contracts.terms.signatures import Signed
from training.averaging.slices import Slice
from training.changes import Changes
from training.tasks import all_of
from training.telling import Tell
from training.transport.calls import Held
from training.worker.averages import terms_of
from training.worker.engine import Engine
from training.worker.patience import Patience
from training.worker.peers import Peers
from training.worker.ports import Behaviour
from training.worker.sealed import SealedCommit, SealedWork
from training.worker.tensors import Kept, OnDisk
from verification.auditing.replays import Replays

# --------------------------------------------------- fetching what others have bound themselves to

PartOf: TypeAlias = Callable[[GradCommit, ChunkIndex, Patience], Awaitable[bytes]]
Wanted: TypeAlias = tuple[Digest, Sequence[PeerId]]
"""A boundary tensor and its holders."""
AHEAD = 4  # fetches of one audit at once


class Fetcher:
    """Of one job; `on_disk` is None for an outside auditor, which stores nothing."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        part_of: PartOf,
        on_disk: Callable[[], OnDisk] | None = None,
    ) -> None:
        self._engine, self._peers, self._part_of = engine, peers, part_of
        self._on_disk = on_disk
        self.patience = Patience()

    async def ahead(self, commit: GradCommit, wanted: Iterable[Wanted]) -> None:
        """Take tensors and parts that an audit needs onto our disk, a few at a time.

        So several silent holders cost their time together, not one after another. What does not
        come is asked for once more when it is needed.
        """
        if self._on_disk is None:  # a few in memory is all that there is room for
            return
        room = asyncio.Semaphore(AHEAD)

        async def one(fetch: Callable[[], Awaitable[object]]) -> None:
            async with room:
                with suppress(errors.TallystickError):
                    await fetch()

        fetches: list[Callable[[], Awaitable[object]]] = [
            partial(self._taken, commit.step, *each) for each in wanted
        ]
        fetches += [partial(self._part_of, commit, e.chunk, self.patience) for e in commit.parts]
        await asyncio.gather(*map(one, fetches))

    async def _taken(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> None:
        if await self._stored(step, digest) is None:
            await self._keep(await self._fetched(step, digest, holders))

    async def tensor(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> Kept:
        """A boundary tensor of a sealed step.

        Args:
            step: Of the unit.
            digest: That a leaf names.
            holders: Who sent and who received it, in the order in which they are asked; but whose
                work is audited comes last.

        Raises:
            NotFound: it is missing, and a Notice says so. Unavailable: it may still come.
            Conflict: nobody asks us for an audit that needs it (any more).
        """
        if (stored := await self._stored(step, digest)) is not None:
            return stored
        try:
            kept = await self._fetched(step, digest, holders)
        except (
            errors.NotFound,
            errors.Unavailable,
        ):  # of a holder that is not reached we cannot say anything
            kept = await self._peers.find_tensor(digest)
        await self._keep(kept)
        return kept

    async def _fetched(self, step: StepNumber, digest: Digest, holders: Sequence[PeerId]) -> Kept:
        if not holders:
            raise errors.NotFound(
                "nobody is said to have this boundary tensor", digest=digest.hex()
            )

        def check(header: TensorHeader) -> None:
            """Its digest is bound; whatever else the header says was compared before the seal."""

        held = Held(digest=digest, holders=tuple(holders))
        return await self._peers.fetch_tensor(
            held, step, check, is_bound=True, patience=self.patience
        )

    async def _stored(self, step: StepNumber, digest: Digest) -> Kept | None:
        if self._on_disk is None:
            return None
        on_disk = self._on_disk()
        try:
            return await self._engine.run_io(lambda: on_disk.get(step, digest))
        except (
            errors.NotFound,
            errors.Unavailable,
            errors.Misbehaved,
        ):  # the disk has lost it; others have it too
            return None

    async def _keep(self, kept: Kept) -> None:
        if self._on_disk is not None:
            audited = self._on_disk().audited
            with suppress(errors.Unavailable):  # a full disk stops no audit
                await self._engine.run_io(lambda: audited.put(kept))

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of one part of a gradient that was bound; raises as `tensor`."""
        try:
            return await self._part_of(commit, chunk, self.patience)
        except errors.Unavailable:
            return await self._peers.find_part(commit.parts[chunk].digest)


# ----------------------------------------------------------------------------------------- the job


class Book(Protocol):
    """What an auditor has stored: a member its `WorkerBook`, an outsider its `OutsiderBook`."""

    @property
    def record(self) -> JobRecord:
        """What the seals establish."""

    @property
    def work(self) -> SealedWork:
        """Work of sealed steps."""

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""

    def own_report(self, subject: Digest, attempt: int) -> Signed[AuditReport] | None:
        """What we have said in a draw."""

    def keep_report(self, signed: Signed[AuditReport]) -> None:
        """Store a report of ours before it is sent; raises Unavailable."""


class AuditedJob(ABC):
    """Satisfies `replays.Source`."""

    def __init__(
        self,
        book: Book,
        folder: Path,
        peers: Peers,
        session: SessionKeys,
        *,
        fetcher: Fetcher,
        changes: Changes,
        behaviour: Behaviour,
        tell: Tell,
    ) -> None:
        """`folder` is where evidence stays; `changes` is marked with every seal."""
        self._book, self.folder, self._peers, self._session = book, folder, peers, session
        self.fetcher, self._changes, self._behaviour = fetcher, changes, behaviour
        self.tell = tell

    @property
    def record(self) -> JobRecord:
        """See `Source.record`."""
        return self._book.record

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self._session.peer

    @property
    def version(self) -> int:
        """Rises with every seal."""
        return self._changes.version

    async def beyond(self, version: int) -> None:
        """Wait for a seal after that version."""
        await self._changes.beyond(version)

    # --------------------------------------------------------------------------------- evidence

    @abstractmethod
    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""

    def commit(self, name: Digest) -> SealedCommit:
        """A sealed GradCommit with its leaves; raises NotFound."""
        return self._book.work.commit(name)

    def state_of(self, commit: GradCommit) -> Digest:
        """See `Source.state_of`."""
        if (root := self._book.work.state_of(commit, self.record.pay_leases())) is None:
            raise errors.Unavailable("what state the stage had in that step is not sealed yet")
        return root

    def report(self, name: Digest) -> AuditReport:
        """See `Source.report`."""
        return self._book.work.report(name)

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """See `Book.parties`."""
        return self._book.parties

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """See `SealedWork.said`."""
        return self._book.work.said()

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: ItemNumber, digest: Digest
    ) -> bytes:
        """See `Source.tensor`."""
        holders = self._book.work.doers(step, stages, unit)
        return (await self.fetcher.tensor(step, digest, holders)).formed

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """See `Source.part`."""
        return await self.fetcher.part(commit, chunk)

    async def sums_to(self, name: Digest) -> Digest | None:
        """Digest that the mean of a sealed AveragedChunk should have; see `sum_again`."""
        sealed = self._book.work.mean(name)
        place = (StageIndex(sealed.chunk.stage), ChunkIndex(sealed.chunk.chunk))
        commits = {commit.digest(): commit for commit in sealed.commits}
        mean = await self.sum_again(sealed.average, commits, place)
        return mean.digest if mean else None

    async def sum_again(
        self, average: AverageSet, commits: Mapping[Digest, GradCommit], place: Chunk
    ) -> Slice | None:
        """The mean of a chunk from the parts that were bound; None: they cannot be added up.

        Raises:
            Malformed: `commits` lacks a member. Else as `part`.
        """
        terms = terms_of(self.record.spec.chunking, average, commits, place)
        parts = await all_of(self.part(term.commit, place[1]) for term in terms)
        own, totals = [term.weight for term in terms], [term.total for term in terms]
        try:
            return await self._mean(parts, own, totals)
        except (errors.Malformed, errors.NotFinite):
            return None

    @abstractmethod
    async def _mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        """See `Compute.mean`."""

    def bound_mean(self, name: Digest) -> Digest:
        """Digest of the mean that an AveragedChunk is bound to; raises NotFound."""
        return self._book.work.mean(name).chunk.chunk_digest

    # ---------------------------------------------------------------------------------- reports

    async def say(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """What we report: what `replay` finds, if we are honest; see `Behaviour.report`."""
        work = self._book.work
        self.fetcher.patience.doer = work.doer_of(agreeing.subject)
        sealed = work.find_work(agreeing.subject)

        async def fetched_and_replayed() -> AuditReport:
            if sealed is not None:
                await self.fetcher.ahead(sealed.commit, work.boundary_of(sealed))
            return await replay()

        return await self._behaviour.report(agreeing, fetched_and_replayed)

    def sign(self, report: AuditReport) -> Signed[AuditReport]:
        """A report of ours with our signature, the same every time."""
        return self._session.sign(report)

    def reported(self, subject: Digest, attempt: int) -> AuditReport | None:
        """What we have said in this draw."""
        signed = self._book.own_report(subject, attempt)
        return signed.message if signed else None

    async def hand_in(self, report: AuditReport) -> bool:
        """Bind ourselves to a report, and bring it to the coordinator; whether it took it.

        Raises:
            Unavailable: the coordinator is not reached, or the disk cannot be written.
        """
        signed = self._book.own_report(report.subject, report.attempt)
        if signed is None:
            signed = self.sign(report)
            self._keep_report(signed)
        try:
            await self._reach_coordinator()
            await self._peers.report(signed)
        except errors.Conflict:
            return False  # it is not wanted any more
        except (errors.Refused, errors.Misbehaved) as error:
            raise errors.Unavailable(f"the report was not taken: {error.message}") from error
        return True

    def _keep_report(self, signed: Signed[AuditReport]) -> None:
        self._book.keep_report(signed)

    @abstractmethod
    async def _reach_coordinator(self) -> None:
        """Have a session with it; raises Unavailable."""
