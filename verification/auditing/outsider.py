"""Who is drawn from outside a job: follows its history, replays what members hand out, reports.

Satisfies structurally what `verification.auditing` asks for, as `audited` does for a member. It has
no lease, no state and no stage: weights are downloaded for each replay (`outside`), tensors and
parts come from the members, all by digests that sealed messages name.

Invariants: a report is on disk before it is sent, and one draw gets one report, restarts included;
nothing that anybody served is believed without its digest or root.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.checking import Begin
from contracts.governance.record import JobRecord
from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.coins import Coins
from contracts.terms.errors import (
    Conflict,
    InvariantBroken,
    Malformed,
    Misbehaved,
    NotFinite,
    Refused,
    Unavailable,
)
from contracts.terms.history import Kept
from contracts.terms.ids import ChunkIndex, Digest, JobId, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit, JobSpec, Message
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from training.averaging.slices import Slice
from training.journal import Journal
from training.tasks import end
from training.telling import Tell, telling_about
from training.transport.dispatch import Dispatcher
from training.transport.port import Transport
from training.worker.averages import terms_of
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import HONEST, Behaviour, Replay, Replayer
from training.worker.sealed import SealedCommit
from verification.auditing.downloaded_weights import DownloadedWeights
from verification.auditing.fetching import Claims
from verification.auditing.outsider_book import OutsideBook
from verification.auditing.replays import Replays, run_when_idle

DIAL = 10.0  # seconds
LOOK_EVERY = 0.5

Items: TypeAlias = Callable[[int], AsyncIterator[Kept]]
"""The items of the job's history after so many, in order, as far as there are any now."""
Locate: TypeAlias = Callable[[], Awaitable[str | None]]
Pause: TypeAlias = Callable[[float], Awaitable[None]]


class Arithmetic(Protocol):
    """What an auditor of any stage computes with."""

    def replayer(self, stage: StageIndex) -> Replayer:
        """Repeats peer-steps of a stage; may take seconds."""
        ...

    def most_bytes(self, stage: StageIndex) -> int:
        """That a file of the stage's weights can have."""
        ...

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]) -> Slice:
        """See `Compute.mean`."""
        ...


class Audits(Protocol):
    """The auditor's loop, `verification.auditing.loop.Auditing`."""

    async def run(self, audited: "OutsideAudited") -> None:
        """Audit for ever; cancelled when there is nothing left to audit."""
        ...


async def run_outside(
    folder: Path,
    job: JobId,
    *,
    domain: Domain,
    begin: Begin,
    session: SessionKeys,
    transport: Transport,
    items: Items,
    coins: Coins,
    locate: Locate,
    arithmetic: Callable[[JobSpec], Arithmetic],
    audits: Audits,
    tell: Tell,
    behaviour: Behaviour = HONEST,
    pause: Pause = asyncio.sleep,
) -> None:
    """Audit what a job draws for us until its last seal; start again where it was.

    Args:
        folder: Holds our reports and downloaded weights, made on first use.
        job: The job.
        domain: Where wallet signatures hold.
        begin: Makes the fold of its draws.
        session: The key that its list of outside auditors names.
        transport: Under `session`; served here, closed by the caller.
        items: Its history, at the market.
        coins: As we read them from the chain.
        locate: Where the coordinator listens now.
        arithmetic: What we compute with.
        audits: What is done about what is drawn for us.
        tell: The log.
        behaviour: What we say of what we did not see, if we lie.
        pause: Waits between tries.

    Raises:
        Conflict: the job does not list our key, or the history is of another job.
        BadSignature, Malformed, InvalidSeal: the history is none that can be.
        InvariantBroken: the audits have ended before the job; a bug of ours, and no silent one.
    """
    with Journal(folder / "journal.sqlite") as journal:
        book = OutsideBook(journal, job, domain, begin, coins)
        following = _Following(book, items, tell, pause)
        while not book.is_open:
            await following.look()
        if not book.lists(session.peer):
            raise Conflict("the job does not list this key as an outside auditor")
        await transport.serve(Dispatcher())
        engine = Engine()
        audited = OutsideAudited(
            book, folder, engine, transport, session, locate, arithmetic, tell, behaviour
        )
        auditing = asyncio.create_task(audits.run(audited))
        try:
            while not book.is_over:
                await following.look()
                _need_on_its_way(auditing)
        finally:
            await end([auditing])
            await engine.close()
    tell("finished", step=book.record.step)


def _need_on_its_way(auditing: asyncio.Task[None]) -> None:
    if auditing.done():
        raise InvariantBroken(f"auditing ended: {auditing.exception()!r}")


class _Following:
    """Reads a history as it grows."""

    def __init__(self, book: OutsideBook, items: Items, tell: Tell, pause: Pause) -> None:
        self._book, self._items, self._tell, self._pause = book, items, tell, pause

    async def look(self) -> None:
        """Read what is new, and wait a moment."""
        try:
            async for item in self._items(self._book.num_items):
                await self._book.take(item)
        except Unavailable as error:
            self._tell("waits", code=error.code, reason=error.message)
        if not self._book.is_over:
            await self._pause(LOOK_EVERY)


class OutsideAudited:
    """One job, as an auditor from outside sees it."""

    def __init__(
        self,
        book: OutsideBook,
        folder: Path,
        engine: Engine,
        transport: Transport,
        session: SessionKeys,
        locate: Locate,
        arithmetic: Callable[[JobSpec], Arithmetic],
        tell: Tell,
        behaviour: Behaviour = HONEST,
    ) -> None:
        """Once the book is open."""
        spec, opening = book.record.spec, book.record.opening
        self._book, self._folder, self._engine = book, folder, engine
        self._transport, self._session, self._locate = transport, session, locate
        self._arithmetic, self._tell, self._behaviour = arithmetic(spec), tell, behaviour
        self._peers = Peers(transport, spec, opening, tell)
        self._claims = Claims(engine, self._peers, self._peers.fetch_part)
        self._replays: dict[StageIndex, Replays] = {}

    @property
    def record(self) -> JobRecord:
        """What the seals that we have read establish."""
        return self._book.record

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self._session.peer

    @property
    def folder(self) -> Path:
        """Where evidence stays."""
        return self._folder

    @property
    def version(self) -> int:
        """Rises with every seal."""
        return self._book.changes.version

    async def beyond(self, version: int) -> None:
        """Wait for a seal after that version."""
        await self._book.changes.beyond(version)

    def tell(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self._tell(event, **fields)

    # --------------------------------------------------------------------------------- evidence

    def replays_in(self, stage: StageIndex) -> Replays:
        """Of a stage, on weights that its members hand out."""
        if stage not in self._replays:
            replayer = _OnDemand(lambda: self._arithmetic.replayer(stage))
            weights = DownloadedWeights(
                self._peers,
                stage,
                self._folder / f"stage-{stage}",
                engine=self._engine,
                replayer=replayer,
                most_bytes=self._arithmetic.most_bytes(stage),
                tell=self._tell,
                doer=lambda: self._claims.patience.doer,
            )
            tell = telling_about(self._tell, stage=stage)
            self._replays[stage] = Replays(self._engine, lambda: replayer, weights, tell)
        return self._replays[stage]

    def commit(self, name: Digest) -> SealedCommit:
        """A sealed GradCommit with its leaves; raises NotFound."""
        return self._book.work.commit(name)

    def state_of(self, commit: GradCommit) -> Digest:
        """Root of the state in which it is judged; see `audited`."""
        if (root := self._book.work.state_of(commit, self.record.pay_leases())) is None:
            raise Unavailable("what state the stage had in that step is not sealed yet")
        return root

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""
        return self._book.work.report(name)

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""
        return self._book.parties

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """See `SealedWork.said`."""
        return self._book.work.said()

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: UnitId, digest: Digest
    ) -> bytes:
        """A boundary tensor as it is digested; see `audited`."""
        holders = self._book.work.doers(step, stages, unit)
        return (await self._claims.tensor(step, digest, holders)).formed

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of a part of a gradient."""
        return await self._claims.part(commit, chunk)

    async def sums_to(self, name: Digest) -> Digest | None:
        """Digest of the mean that a sealed AveragedChunk should have; see `audited`."""
        sealed = self._book.work.mean(name)
        chunk = (StageIndex(sealed.chunk.stage), ChunkIndex(sealed.chunk.chunk))
        commits = {commit.digest(): commit for commit in sealed.commits}
        terms = terms_of(self.record.spec.chunking, sealed.average, commits, chunk)
        parts = [await self.part(term.commit, chunk[1]) for term in terms]
        own, totals = [term.weight for term in terms], [term.total for term in terms]
        add = partial(self._arithmetic.mean, parts, own, totals)
        try:
            return (await run_when_idle(self._engine, add)).digest
        except (Malformed, NotFinite):
            return None

    def bound_mean(self, name: Digest) -> Digest:
        """Digest of the mean that it is bound to; raises NotFound."""
        return self._book.work.mean(name).chunk.chunk_digest

    # ---------------------------------------------------------------------------------- reports

    async def say(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`; members are asked for, as who was there before may be gone.

        Raises:
            Unavailable: the coordinator is not reached. Refused: it does not let us in.
        """
        await self._reach_coordinator()
        await self._peers.refresh()
        self._claims.patience.doer = self._book.work.doer_of(agreeing.subject)
        return await self._behaviour.report(agreeing, replay)

    def sign(self, report: AuditReport) -> Signed[AuditReport]:
        """A report of ours, signed; the same every time."""
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
            self._book.keep_report(signed)
            self._tell("report_kept", step=report.step, subject=report.subject)
        try:
            await self._reach_coordinator()
            await self._peers.report(signed)
        except Conflict:
            return False  # it is not wanted any more
        except (Refused, Misbehaved) as error:
            raise Unavailable(f"the report was not taken: {error.message}") from error
        return True

    async def _reach_coordinator(self) -> None:
        key = self.record.opening.session_key
        session = self._transport.sessions.get(key)
        if session is not None and not session.closed:
            return
        if (hint := await self._locate()) is None:
            raise Unavailable("the coordinator's address is not known")
        await self._transport.dial(key, [hint], deadline=DIAL)


class _OnDemand:
    """Satisfies `Replayer` with one that is made when it is first needed, where it may compute."""

    def __init__(self, make: Callable[[], Replayer]) -> None:
        self._make = make
        self._made: Replayer | None = None

    def need_weights(self, weights: Path, state_root: Digest) -> None:
        """See `Replayer.need_weights`."""
        self._replayer().need_weights(weights, state_root)

    def begin(self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes) -> Replay:
        """See `Replayer.begin`."""
        return self._replayer().begin(step, weights, state_root, seed)

    def _replayer(self) -> Replayer:
        if self._made is None:
            self._made = self._make()
        return self._made
